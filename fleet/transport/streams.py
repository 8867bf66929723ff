"""What channels of all transports do alike with the three streams of a process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from fleet.errors import ConnectError, LimitError
from fleet.model import Host

# while a process there reads nothing: how long that may last, and how much of what it writes meanwhile is kept
SEND_PATIENCE = 120.0
EARLY_BYTES = 64 << 20
STDERR_BYTES = 64 << 10


@contextlib.contextmanager
def starting_thread() -> Iterator[None]:
    """LimitError where this machine does not allow one more."""
    try:
        yield
    except RuntimeError as error:
        raise LimitError(
            "this machine does not allow another thread",
            hint="lower --fanout, or raise 'ulimit -u' (pids.max of a container)",
        ) from error


class Streams:
    """The better half of a channel: a transport adds _write and _read, and what is its own. recv, send and wait may be
    called from different threads."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._reading = threading.Lock()
        self._early = bytearray(), bytearray()  # of stdout and stderr, taken in while a send waited
        self._errors = b""

    def _write(self, data: memoryview) -> int:
        """Have it take some bytes; 0 where it takes none just now. ConnectError(kind="lost")."""
        raise NotImplementedError

    def _read(self, timeout: float) -> tuple[bytes, bytes] | None:
        """As recv_both; by one thread at a time."""
        raise NotImplementedError

    def _pause(self, reading: bool) -> None:
        """Wait a little, until it takes something or, where `reading`, says something."""

    def send(self, data: bytes, *, patience: float = SEND_PATIENCE) -> None:
        """Blocks while the process takes nothing. What it writes meanwhile is taken in, so that one which writes
        before it reads on cannot make both wait for ever."""
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
            while mine and self._has_room() and any(said := self._read(0.0) or ()):
                for early, data in zip(self._early, said, strict=True):
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
        while (said := self.recv_both(max(0.0, until - time.monotonic()))) is not None:
            self._errors = (self._errors + said[1])[-STDERR_BYTES:]
            if said[0] or not said[1]:
                return said[0]
            if time.monotonic() >= until:  # stderr alone may never pause
                break
        return None

    def recv_stderr(self) -> bytes:
        said, self._errors = self._errors, b""
        return said
