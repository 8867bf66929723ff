"""A file of a broadcast, and its part while it is under way: appended to, its blocks journalled, so that an
interrupted transfer goes on where it was."""

import hashlib
import os

from fleet.node.delivery.disk_space import write_sparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fleet.node.delivery.target import Target

BLOCK = 4 << 20


class Stopped(Exception):
    """Whoever waited is to do something else now."""


class File:
    """One regular file. have: bytes from its start that are here. state: "wanted", "held" or "failed"."""

    def __init__(self, target: "Target", entry: "Any", start: int) -> None:
        self.target, self.start = target, start
        _number, self.name, _kind, self.mode, self.size, self.mtime_ns, _link = entry
        self.have, self.state = 0, "wanted"
        self.epochs: set[int] = set()  # the links that brought it; 0: an earlier broadcast's
        self.staged = False
        self.part, self.digest = b"", ""
        self.received = False

    @property
    def final(self) -> bytes:
        """Where it goes, to be used at once."""
        return self.target.full(self.name)


class Writer:
    """Appends to a part file; of large ones every complete block's digest goes to the journal."""

    def __init__(self, f: "File", offset: int) -> None:
        self.of, self.size = f, f.size
        self.fd = os.open(f.part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.ftruncate(self.fd, offset)
        self.at = offset
        self.blocks: int | None = None
        if f.size > BLOCK:
            self.blocks = os.open(f.part + b".blocks", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.ftruncate(self.blocks, offset // BLOCK * 32)
            os.lseek(self.blocks, 0, os.SEEK_END)
            self.hash = hashlib.sha256(self.begun(f.part, offset))

    @staticmethod
    def begun(part: bytes, offset: int) -> bytes:
        with open(part, "rb") as f:
            f.seek(offset // BLOCK * BLOCK)
            return f.read(offset % BLOCK)

    def write(self, view: memoryview) -> None:
        write_sparse(self.fd, view, self.at)
        if self.blocks is None:
            self.at += len(view)
            return
        while len(view):
            piece = view[: BLOCK - self.at % BLOCK]
            self.hash.update(piece)
            self.at += len(piece)
            if self.at % BLOCK == 0 or self.at == self.size:
                os.write(self.blocks, self.hash.digest())
                self.hash = hashlib.sha256()
            view = view[len(piece) :]

    def close(self) -> None:
        os.close(self.fd)
        if self.blocks is not None:
            os.close(self.blocks)


def verified_prefix(part: bytes, size: int) -> int:
    """Bytes at the start of a part file that its block digests vouch for; the rest of both is cut off."""
    blocks = part + b".blocks"
    good = 0
    try:
        with open(part, "r+b") as data, open(blocks, "r+b") as digests:
            while good < size:
                block = data.read(min(BLOCK, size - good))
                if len(block) < min(BLOCK, size - good):
                    break
                if digests.read(32) != hashlib.sha256(block).digest():
                    break
                good += len(block)
            data.truncate(good)
            digests.truncate((good + BLOCK - 1) // BLOCK * 32)
    except OSError:
        return 0
    return good
