"""What a process does not read of its standard input goes nowhere else."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
from pathlib import Path

from fleet.node.relay.agent import HEAD, pump


class Plain:
    """A connection without TLS, as a Pump uses it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self.fileno = sock.fileno

    def recv(self, size: int) -> bytes:
        try:
            return self.sock.recv(size)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None

    def send(self, data: bytes) -> int:
        try:
            return self.sock.send(data)
        except BlockingIOError:
            raise ssl.SSLWantWriteError from None

    def setblocking(self, flag: bool) -> None:
        self.sock.setblocking(flag)

    def pending(self) -> int:
        return 0

    def close(self) -> None:
        self.sock.close()


def test_a_closed_input_is_written_to_no_other_file(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        ["sh", "-c", "exec <&-; echo closed; exec sleep 60"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin
    number = process.stdin.fileno()
    pumping = threading.Thread(target=pump, args=(Plain(theirs), process))
    pumping.start()
    try:
        ours.settimeout(60)
        said = b""
        while b"closed" not in said:
            said += ours.recv(4096)
        frame = HEAD.pack(b"O", 0, 5) + b"input"
        ours.sendall(frame)
        while not process.stdin.closed:
            ours.sendall(frame)
        with (tmp_path / "file").open("wb") as file:
            taken = file.fileno() == number  # as another thread's open() may get that number
            os.dup2(file.fileno(), number)
            for _ in range(100):
                ours.sendall(frame)
            process.kill()
            pumping.join(60)
            if not taken:
                os.close(number)
        assert (tmp_path / "file").read_bytes() == b""
    finally:
        process.kill()
        ours.close()
        pumping.join(60)
        theirs.close()
