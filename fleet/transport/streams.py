"""Implements the parts that channels and sessions of all transports have in common."""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.base import Channel

C = TypeVar("C", bound=Channel)

# limits while a process reads nothing: the seconds, and the bytes of its output that are kept
SEND_PATIENCE = 120.0
EARLY_BYTES = 64 << 20
STDERR_BYTES = 64 << 10


class Streams:
    """Serves as base of channels. A transport adds _write, _read and its own methods. Different threads may call recv,
    send and wait."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._reading = threading.Lock()
        self._early = bytearray(), bytearray()  # of stdout and stderr, received while a send waited
        self._errors = b""

    def _write(self, data: memoryview) -> int:
        """Sends some of the bytes. Returns the number of sent bytes; 0 if the process reads none at this moment. Raises
        ConnectError(kind="lost")."""
        raise NotImplementedError

    def _read(self, timeout: float) -> tuple[bytes, bytes] | None:
        """Returns what recv_both() returns. Only one thread at a time calls it."""
        raise NotImplementedError

    def _pause(self, reading: bool) -> None:
        """Waits a moment until bytes can be sent or, with `reading`, received."""

    def send(self, data: bytes, *, patience: float = SEND_PATIENCE) -> None:
        """Sends all bytes; blocks while the process reads nothing. It receives the process's output meanwhile.
        Otherwise a process that must write before it reads on would wait for ever."""
        view, moved = memoryview(data), time.monotonic()
        while view:
            if count := self._write(view):
                view, moved = view[count:], time.monotonic()
            elif time.monotonic() - moved < patience:
                self._take_in()
            else:
                raise ConnectError(
                    f"the process there reads nothing for {patience:g} s",
                    kind="lost",
                    host=self._host.name,
                    hint="the host hangs, or something else answers there",
                )

    def _take_in(self) -> None:
        mine = self._has_room() and self._reading.acquire(blocking=False)
        try:
            self._pause(mine)
            while mine and self._has_room() and any(received := self._read(0.0) or ()):
                for early, data in zip(self._early, received, strict=True):
                    early += data
        finally:
            if mine:
                self._reading.release()

    def _has_room(self) -> bool:
        return sum(map(len, self._early)) < EARLY_BYTES

    def recv_both(self, timeout: float) -> tuple[bytes, bytes] | None:
        with self._reading:
            if not any(self._early):
                return self._read(timeout)
            out, err = map(bytes, self._early)
            self._early = bytearray(), bytearray()
            return out, err

    def recv(self, timeout: float) -> bytes | None:
        until = time.monotonic() + timeout
        while (received := self.recv_both(max(0.0, until - time.monotonic()))) is not None:
            self._errors = (self._errors + received[1])[-STDERR_BYTES:]
            if received[0] or not received[1]:
                return received[0]
            if time.monotonic() >= until:  # stderr alone may come without a pause
                break
        return None

    def recv_stderr(self) -> bytes:
        received, self._errors = self._errors, b""
        return received


class Started(Generic[C]):
    """Serves as base of sessions whose channels are independent. A transport adds _channel()."""

    def __init__(self, host: Host, address: str | None = None) -> None:
        self.host, self.address = host, address
        self._channels: list[C] = []

    def _channel(self, command: str) -> C:
        raise NotImplementedError

    def start(self, command: str) -> C:
        channel = self._channel(command)
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
