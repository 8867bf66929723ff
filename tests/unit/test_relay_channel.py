"""The channel to a process that an agent has started, where that process is slow to read."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from typing import Any

from fleet.model import Host
from fleet.protocol.frames import EXIT, OUTPUT, PREAMBLE
from fleet.transport.frames import HEADER
from fleet.transport.relay import RelayChannel

EOF = HEADER.pack(OUTPUT, 0, 0)
ENDED = b'{"exit_status": 7}'


class Plain(socket.socket):
    """A socket that has nothing to encrypt, and reports as TLS does that it would wait."""

    def send(self, *args: Any) -> int:
        try:
            return super().send(*args)
        except BlockingIOError:
            raise ssl.SSLWantWriteError from None

    def recv(self, *args: Any) -> bytes:
        try:
            return super().recv(*args)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None


class Opened:
    """What a channel takes of a Link."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock


def test_the_end_of_its_input_reaches_a_process_that_reads_late() -> None:
    near, far = socket.socketpair()
    for sock in (near, far):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    channel = RelayChannel(Opened(Plain(fileno=near.detach())), Host("a", "a"))  # type: ignore[arg-type]

    def process() -> None:
        received = b""
        time.sleep(1.0)
        while not received.endswith(EOF) and (data := far.recv(1 << 16)):
            received = (received + data)[-len(EOF) :]
        if received == EOF:
            far.sendall(PREAMBLE + HEADER.pack(EXIT, 0, len(ENDED)) + ENDED)

    thread = threading.Thread(target=process, daemon=True)
    thread.start()
    try:
        channel.send(b"x" * 60_000)
        channel.send_eof()
        assert channel._unsent, "this machine's buffers hold all of it: the test shows nothing"
        before = time.process_time()
        assert channel.wait(20.0) == 7
        assert time.process_time() - before < 0.5, "it waits in a loop that never pauses"
    finally:
        channel.close()
        far.close()
        thread.join(10.0)
