"""Carries a process's three streams over one connection, in one thread: two must not use an SSL connection at once."""

import os
import select
import ssl
import subprocess
from struct import Struct

from fleet.node.base import json
from fleet.node.base.types import Any
from fleet.protocol.frames import EXIT, HEADER, OUTPUT, PREAMBLE

BYTES = 1 << 16  # in one read
WAITING = 1 << 20  # bytes that one side has not taken yet; from there on, the other side is not read
SLICE = 0.2  # seconds between polls: the end of a process that left its pipes to another one shows by polling only
HEAD = Struct(HEADER)


class Pump:
    """Moves bytes between the head and a process. From the head come OUTPUT frames with stdin; an empty one ends it. To
    the head go PREAMBLE, OUTPUT frames of stdout (stream 1) and stderr (stream 2), and EXIT."""

    def __init__(self, sock: "Any", process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin and process.stdout and process.stderr
        sock.setblocking(False)
        self._sock, self._process = sock, process
        self._stdin = process.stdin.fileno()
        self._open = {process.stdout.fileno(): 1, process.stderr.fileno(): 2}
        for fd in (self._stdin, *self._open):
            os.set_blocking(fd, False)
        self._said = bytearray()  # received from the head, not yet a whole frame
        self._input = bytearray()
        self._closing = self._gone = self._closed = False
        self._output = bytearray(PREAMBLE)

    def run(self) -> None:
        """Runs until the process has ended and all its output is sent. Where the connection is lost, stops and closes
        the process's stdin."""
        while not self._gone:
            self._turn()
            status = self._process.poll()
            if status is not None and (not self._open or not self._any_output()):
                self._frame(EXIT, 0, json.dumps({"exit_status": status if status >= 0 else 128 - status}).encode())
                while self._output and not self._gone:
                    self._wait(select.POLLOUT)
                    self._send()
                return

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(
            self._sock,
            (select.POLLIN if len(self._input) < WAITING else 0) | (select.POLLOUT if self._output else 0),
        )
        if self._input:
            poll.register(self._stdin, select.POLLOUT)
        for fd in self._open if len(self._output) < WAITING else ():
            poll.register(fd, select.POLLIN)
        ready = dict(poll.poll(0 if self._sock.pending() else SLICE * 1000))
        if len(self._input) < WAITING and (self._sock.pending() or ready.get(self._sock.fileno())):
            self._receive()
        if self._input and self._stdin in ready:
            self._feed()
        self._end_input()
        for fd in [fd for fd in self._open if fd in ready]:
            self._take(fd)
        self._send()

    def _any_output(self) -> bool:
        """Reads the output that is left of a process that has ended. Returns False where there was none."""
        before = len(self._output)
        for fd in list(self._open):
            self._take(fd)
        return len(self._output) > before

    def _wait(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._sock, events)
        poll.poll(SLICE * 1000)

    def _frame(self, kind: bytes, stream: int, payload: bytes) -> None:
        self._output += HEAD.pack(kind, stream, len(payload)) + payload

    def _receive(self) -> None:
        try:
            data = self._sock.recv(BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            data = b""
        if not data:
            self._gone = True
        self._said += data
        while len(self._said) >= HEAD.size:
            _, _, length = HEAD.unpack_from(self._said)
            end = HEAD.size + length
            if len(self._said) < end:
                return
            if not self._closed:  # its number may be another file's by now
                self._input += self._said[HEAD.size : end]
            self._closing = self._closing or not length
            del self._said[:end]

    def _feed(self) -> None:
        try:
            del self._input[: os.write(self._stdin, self._input[:BYTES])]
        except BlockingIOError:
            pass
        except OSError:  # no process reads stdin
            self._input.clear()
            self._closing = True

    def _end_input(self) -> None:
        if (self._closing and not self._input or self._gone) and not self._closed:
            self._closed = True
            assert self._process.stdin
            self._process.stdin.close()

    def _take(self, fd: int) -> None:
        try:
            data = os.read(fd, BYTES)
        except BlockingIOError:
            return
        if data:
            self._frame(OUTPUT, self._open[fd], data)
        else:
            del self._open[fd]

    def _send(self) -> None:
        try:
            while self._output:
                del self._output[: self._sock.send(bytes(self._output[:BYTES]))]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self._gone = True


def pump(sock: "Any", process: "subprocess.Popen[bytes]") -> None:
    """Carries the streams until the process or the connection has ended. Then closes both and waits for the process."""
    try:
        Pump(sock, process).run()
    finally:
        sock.close()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe and not pipe.closed:
                try:
                    pipe.close()
                except OSError:
                    pass
        process.wait()
