"""A port that nothing has, and that nothing else takes before whoever asked for it does."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port(address: str = "127.0.0.1") -> int:
    """Below those that the kernel gives to whoever connects (so does bind() to port 0: any process of this machine may
    have that a moment later), and by chance: tests run in several processes at once."""
    while True:
        port = random.SystemRandom().randrange(10000, 20000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((address, port))
            return port
