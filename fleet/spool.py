"""Keeps the output of hosts in memory while it is small, and otherwise in one temporary file that has no name."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator

from fleet.errors import LimitError

# most bytes in memory: of one stream, of all streams, and of one stream after a part of it went to the file
HELD_EACH, HELD_ALL, BLOCK = 1 << 20, 16 << 20, 1 << 16
PIECE = 1 << 18


class Spool:
    """Holds the file for all streams of one verb. It uses at most half of the free space of its disk. held: bytes that
    the streams have in memory."""

    def __init__(self) -> None:
        self.held = 0
        self._fd: int | None = None
        self._end = self._room = 0
        self._lock = threading.Lock()

    def put(self, data: bytes | bytearray) -> int:
        """Appends data to the file. Returns its offset. Raises LimitError if there is no room."""
        import tempfile

        with self._lock:
            folder = os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
            try:
                if self._fd is None:
                    with tempfile.TemporaryFile(dir=folder, prefix="fleet-") as file:
                        self._fd = os.dup(file.fileno())
                    weakref.finalize(self, os.close, self._fd)
                    disk = os.fstatvfs(self._fd)
                    self._room = disk.f_bavail * disk.f_frsize // 2
                if self._end + len(data) > self._room:
                    raise OSError(28, "no room")
                view = memoryview(data)
                while view:
                    view = view[os.pwrite(self._fd, view, self._end + len(data) - len(view)) :]
            except OSError as error:
                raise LimitError(
                    f"more output than {folder or tempfile.gettempdir()} takes: {error.strerror}, "
                    f"{self._end >> 20} MiB are kept there",
                    kind="room",
                    hint="have it written to a file there; or set TMPDIR to a folder with more room",
                ) from error
            self._end += len(data)
            return self._end - len(data)

    def get(self, at: int, count: int) -> bytes:
        assert self._fd is not None
        return os.pread(self._fd, count, at)


class Stream:
    """Collects one output as it grows. Only one thread at a time may use it."""

    def __init__(self, spool: Spool) -> None:
        import hashlib

        self._spool, self._extents = spool, list[tuple[int, int]]()
        self._digest, self._size, self._rest = hashlib.sha256(), 0, bytearray()

    def add(self, data: bytes) -> None:
        spool, rest = self._spool, self._rest
        self._digest.update(data)
        self._size += len(data)
        rest += data
        spool.held += len(data)  # without a lock, because it need not be exact
        if len(rest) > HELD_EACH or (self._extents or spool.held > HELD_ALL) and len(rest) > BLOCK:
            at, spool.held = spool.put(rest), spool.held - len(rest)
            self._extents.append((at, len(rest)))
            rest.clear()

    def whole(self) -> bytes | Spooled:
        """Returns the whole output, as Spooled if a part of it is in the file. The stream must have ended."""
        rest = bytes(self._rest)
        return (
            Spooled(self._spool, tuple(self._extents), rest, self._size, self._digest.digest())
            if self._extents
            else rest
        )


class Spooled:
    """Holds an output that is in the file of a Spool, except for its last bytes. It equals another Spooled with the
    same digest, and equal bytes that are small enough for a Stream to keep in memory."""

    def __init__(
        self, spool: Spool, extents: tuple[tuple[int, int], ...], rest: bytes, size: int, digest: bytes
    ) -> None:
        self._spool, self._extents, self._rest, self._size, self._digest = spool, extents, rest, size, digest

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        if isinstance(other, bytes):
            return self._size == len(other) <= HELD_EACH and bytes(self) == other
        return isinstance(other, Spooled) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(bytes(self) if self._size <= HELD_EACH else self._digest)

    def __iter__(self) -> Iterator[bytes]:
        """Yields the output: the bytes in the file, at most PIECE at a time, then the bytes in memory."""
        for at, size in self._extents:
            for begin in range(0, size, PIECE):
                yield self._spool.get(at + begin, min(PIECE, size - begin))
        yield self._rest

    def __bytes__(self) -> bytes:
        return b"".join(self)


def pieces(data: bytes | Spooled) -> Iterator[bytes]:
    """Yields the data in pieces."""
    if isinstance(data, Spooled):
        yield from data
    else:
        yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))
