"""All files of a broadcast as ONE stream of bytes, in manifest order, read anywhere below what is there."""

import bisect

from fleet.node.base.types import Callable, Iterable


class Stopped(Exception):
    """The thread that waited is to do something else now."""


class Stream:
    """sizes: of its files. starts: where each of them begins; total: bytes of all; count: files."""

    def __init__(self, sizes: "Iterable[int]") -> None:
        self.starts: list[int] = []
        self.total = 0
        for size in sizes:
            self.starts.append(self.total)
            self.total += size
        self.count = len(self.starts)

    def at(self, position: int) -> "tuple[int, int]":
        """(file, offset in it) of a byte."""
        index = bisect.bisect_right(self.starts, position) - 1
        return index, position - self.starts[index]

    def take(self, position: int, end: int, cancelled: "Callable[[], bool]") -> bytes:
        """Bytes from `position` on, before `end`, at least one; waits until they are here. Raises Stopped. A stream
        cannot skip: what cannot be read goes out as zeros, and fails at the digest."""
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
        """How many bytes of a file are here, from its start on; wait: until there is one at `offset`."""
        raise NotImplementedError

    def read(self, index: int, offset: int, size: int) -> bytes:
        """Returns what is there of these bytes of a file. Raises OSError."""
        raise NotImplementedError
