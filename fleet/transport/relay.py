"""Defines channels to processes that an agent (fleet/node/relay) starts. Each channel is a TLS connection on which both
ends send frames."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.node.delivery.chain.link import Link, shut
from fleet.protocol.frames import EXIT, OUTPUT
from fleet.transport.frames import HEADER, Decoder, Exit
from fleet.transport.streams import Streams

BYTES = 1 << 16
SLICE_SECONDS = 0.2


class RelayChannel(Streams):
    """Passes the bytes of a process that an agent has started. link: the connection that the agent has opened for
    it."""

    def __init__(self, link: Link, host: Host) -> None:
        super().__init__(host)
        self._sock = link.sock
        self._sock.setblocking(False)
        self._using = threading.Lock()  # only one thread at a time may use an SSL connection
        self._unsent = b""
        self._decoder = Decoder(host.name)
        self._status: int | None = None
        self._ended = self._shut = False

    def _write(self, data: memoryview) -> int:
        if not self._flush():
            return 0
        part = bytes(data[:BYTES])
        self._unsent = HEADER.pack(OUTPUT, 0, len(part)) + part
        self._flush()
        return len(part)

    def _flush(self) -> bool:
        """Sends the unsent bytes. Returns True if all are sent."""
        while self._unsent:
            try:
                with self._using:
                    self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except (OSError, ValueError) as error:
                raise ConnectError(
                    "the connection was lost, or the process there has ended", kind="lost", host=self._host.name
                ) from error
        return True

    def _pause(self, reading: bool) -> None:
        self._poll((select.POLLOUT if self._unsent else 0) | (select.POLLIN if reading else 0), SLICE_SECONDS)

    def _poll(self, events: int, seconds: float) -> None:
        poll = select.poll()
        with contextlib.suppress(ValueError, OSError):  # another thread has closed it
            poll.register(self._sock, events)
            poll.poll(max(0.0, seconds) * 1000)

    def send_eof(self) -> None:
        until = time.monotonic() + SLICE_SECONDS
        with contextlib.suppress(ConnectError):
            while not self._flush() and time.monotonic() < until:
                self._pause(False)
            with self._using:  # a reader may be sending
                self._unsent += HEADER.pack(OUTPUT, 0, 0)
            self._flush()

    def _read(self, timeout: float) -> tuple[bytes, bytes] | None:
        until = time.monotonic() + timeout
        while not self._ended:
            try:
                with self._using:
                    data = self._sock.recv(4 * BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if (left := until - time.monotonic()) <= 0:
                    return None
                if self._unsent:
                    with contextlib.suppress(ConnectError):
                        self._flush()
                self._poll(select.POLLIN, min(left, SLICE_SECONDS) if self._unsent else left)
                continue
            except (OSError, ValueError):
                data = b""
            received = self._decode(data)
            self._ended = self._ended or not data
            if any(received):
                return received
        if self._status is None and not self._shut:
            self._shut = True
            raise ConnectError("the connection was lost", kind="lost", host=self._host.name)
        return b"", b""

    def _decode(self, data: bytes) -> tuple[bytes, bytes]:
        outputs = {1: bytearray(), 2: bytearray()}
        for frame in self._decoder.feed(data):
            if frame.kind == EXIT:
                self._status, self._ended = frame.decode(Exit)["exit_status"], True
            elif frame.stream in outputs:
                outputs[frame.stream] += frame.payload
        return bytes(outputs[1]), bytes(outputs[2])

    def wait(self, timeout: float) -> int | None:
        until = time.monotonic() + timeout
        while not self._ended and time.monotonic() < until:
            with contextlib.suppress(ConnectError):
                self._flush()  # the frame that ends the process's input may be unsent
            with contextlib.suppress(ConnectError):
                self._take_in()
        return self._status

    def close(self) -> None:
        self._shut = True
        shut(self._sock)
        with self._using, contextlib.suppress(OSError):
            socket.socket.close(self._sock)
