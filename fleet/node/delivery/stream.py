"""Treats all files of a broadcast as ONE stream of bytes, in manifest order. A sender can read any part that this
machine has."""

import bisect

from fleet.node.base.types import Callable, Iterable


class Stopped(Exception):
    """Is raised in a thread whose wait is cancelled."""


class Stream:
    """Maps positions in the stream to files. sizes: of the files. starts: the position at which each file begins.
    total: the length of the stream. count: the number of files."""

    def __init__(self, sizes: "Iterable[int]") -> None:
        self.starts: list[int] = []
        self.total = 0
        for size in sizes:
            self.starts.append(self.total)
            self.total += size
        self.count = len(self.starts)

    def at(self, position: int) -> "tuple[int, int]":
        """Returns (file number, offset in the file) of a position."""
        index = bisect.bisect_right(self.starts, position) - 1
        return index, position - self.starts[index]

    def take(self, position: int, end: int, cancelled: "Callable[[], bool]") -> bytes:
        """Returns bytes of the stream from `position` on, at most up to `end`. Waits until there is at least one.
        Raises Stopped if cancelled() returns True while it waits. Replaces unreadable bytes by zeros, as a stream
        cannot skip bytes. The receiver then sees that the digest of the file is wrong."""
        parts: list[bytes] = []
        while position < end:
            index, offset = self.at(position)
            size = min(self.here(index, offset, not parts, cancelled) - offset, end - position)
            if size <= 0:
                break
            try:
                data = self.read(index, offset, size)
            except OSError:
                data = b""
            parts.append(data + bytes(size - len(data)))
            position += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def here(self, index: int, offset: int, wait: bool, cancelled: "Callable[[], bool]") -> int:
        """Returns how many bytes of a file, from its start, this machine has. index: the file's number. wait: True
        waits until it has the byte at `offset`. cancelled: ends the wait, see take()."""
        raise NotImplementedError

    def read(self, index: int, offset: int, size: int) -> bytes:
        """Returns `size` bytes of a file from `offset` on, or fewer if the file is shorter. Raises OSError if it is
        unreadable."""
        raise NotImplementedError
