"""The head's transport to machines (machine.py): sockets that a Link leads to them, which may be cut. The entry point
`fuzz` of the group fleet.transports leads here."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions, Session
from fleet.transport.shell import lost
from fleet.transport.streams import Streams

LINKS = "FUZZ_LINKS"  # the folder of this head's sockets, one a node
READ_BYTES = 1 << 16
SLICE_SECONDS = 0.2


class LinkChannel(Streams):
    def __init__(self, host: Host, sock: socket.socket) -> None:
        super().__init__(host)
        self._socket = sock
        self._over = False

    def _write(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            raise lost(self._host.name) from None

    def _pause(self, reading: bool) -> None:
        self._wait(select.POLLOUT | (select.POLLIN if reading else 0), SLICE_SECONDS)

    def _wait(self, what: int, seconds: float) -> bool:
        poll = select.poll()
        try:
            poll.register(self._socket, what)
        except ValueError:
            return True  # closed, by another thread
        return bool(poll.poll(seconds * 1000))

    def send_eof(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _read(self, timeout: float) -> tuple[bytes, bytes] | None:
        if self._over:
            return b"", b""
        if not self._wait(select.POLLIN, timeout):
            return None
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self._over = not data
        return data, b""

    def wait(self, timeout: float) -> int | None:
        """None: a connection that ends says nothing of what ran there; programs tell of their end themselves."""
        until = time.monotonic() + timeout
        while not self._over and time.monotonic() < until:
            self.recv_both(max(0.0, min(SLICE_SECONDS, until - time.monotonic())))
        return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class LinkSession:
    address: str | None = None

    def __init__(self, host: Host, seconds: float, cancel: Cancel) -> None:
        self.host, self._seconds = host, seconds
        self._ready: socket.socket | None = self._dial(seconds, cancel)
        self._channels: list[LinkChannel] = []

    def _dial(self, seconds: float, cancel: Cancel) -> socket.socket:
        """ConnectError."""
        name, until = self.host.name, time.monotonic() + seconds
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(Path(os.environ[LINKS], name)))
            sock.setblocking(False)
            while time.monotonic() < until and not cancel.is_set():
                if not select.select([sock], [], [], SLICE_SECONDS)[0]:
                    continue
                if sock.recv(1):
                    return sock
                raise ConnectionResetError
            raise ConnectError(f"no answer within {seconds:g} s", host=name, kind="timeout")
        except OSError as error:
            sock.close()
            raise ConnectError(f"cannot be reached: {error}", host=name, kind="refused") from None
        except ConnectError:
            sock.close()
            raise

    def start(self, command: str) -> LinkChannel:
        sock, self._ready = self._ready or self._dial(self._seconds, Cancel()), None
        channel = LinkChannel(self.host, sock)
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        if self._ready is not None:
            self._ready.close()
        for channel in self._channels:
            channel.close()


class LinkTransport:
    name = "fuzz"

    def __init__(self, options: ConnectOptions | None = None, *, hosts: Iterable[Host] = ()) -> None:
        self._seconds = (options or ConnectOptions()).connect_timeout

    def connect(self, host: Host, cancel: Cancel) -> Session:
        return LinkSession(host, self._seconds, cancel)

    def resolve(self, host: Host) -> None:
        return None

    def route(self, host: Host) -> tuple[Host, ...]:
        return ()

    def close(self) -> None:
        pass
