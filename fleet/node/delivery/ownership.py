"""Decides the owner of each path in a destination.

    delivered    fleet put the path there, and it is unchanged since. A sync replaces or deletes it when the source's
                 path has changed or is gone.
    seen         The path was there before, equal to the source's, and is unchanged since. A sync replaces it when the
                 source's has changed, but never deletes it.
    own          All other paths: a run made the path, a user edited it, or another delivery also put it there. A sync
                 neither replaces nor deletes it. If the source's has changed since, the path is in the way.

docs/sync.md has the table.
"""

import os
import stat
from fnmatch import fnmatchcase

from fleet.node.base.beneath import Beneath
from fleet.node.base.files import file_digest, version_of
from fleet.node.base.types import Any, Collection, Iterator, Sequence
from fleet.node.base.wire import decode, encode
from fleet.node.delivery.journal import (
    DELIVERED,
    DIGEST,
    KIND,
    LINK,
    SEEN,
    SIZE,
    STATUS,
    Journal,
    delivered_to,
    unchanged,
)
from fleet.protocol.state import CODE_STATE, DATA_STATE

OWN = ""
KINDS = (("d", stat.S_ISDIR), ("f", stat.S_ISREG), ("l", stat.S_ISLNK))


def is_meant(path: str, patterns: "bool | Sequence[str]") -> bool:
    """Returns whether one of the shell patterns matches the path, its last name, or one of its parent folders. If
    patterns is True or False, returns that."""
    if isinstance(patterns, bool):
        return patterns
    parts = path.split("/")
    names = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)] + parts[-1:]
    return any(fnmatchcase(name, pattern.strip("/")) for pattern in patterns for name in names)


def kind_of(st: "os.stat_result") -> str:
    """Returns "f", "d" or "l", or "o" for any other kind of file."""
    return next((kind for kind, is_one in KINDS if is_one(st.st_mode)), "o")


def look(dest: "Beneath", path: str) -> "os.stat_result | None":
    """Returns the lstat of a path in `dest`. Returns None if the path is missing, or if a parent of it is a link."""
    inside, _, name = encode(path).rpartition(b"/")
    try:
        return os.stat(name or b".", dir_fd=dest.folder(inside), follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def same(one: "os.stat_result | None", other: "os.stat_result | None") -> bool:
    """Returns whether two stats of a path are of the same version of a file, or both of a folder."""
    if one is None or other is None:
        return one is other
    if stat.S_ISDIR(one.st_mode):
        return stat.S_ISDIR(other.st_mode)
    return one.st_dev == other.st_dev and version_of(one) == version_of(other)


class Ownership:
    """Decides the owner of the paths in `dest`, by the rows of its journal. digests: path -> sha256 of the file there.
    others: folder or file -> the known rows of each other delivery to it."""

    def __init__(self, dest: "Beneath", journal: "Journal") -> None:
        self.dest, self.journal = dest, journal
        self.digests: dict[str, str] = {}
        self.others: dict[bytes, list[dict[str, list[Any]]]] = {}

    def digest(self, path: str) -> str:
        """Returns the sha256 of a file here, or "" if it cannot be read."""
        if path not in self.digests:
            try:
                self.digests[path] = file_digest(self.dest.at(encode(path)), os.O_NOFOLLOW)
            except OSError:
                self.digests[path] = ""
        return self.digests[path]

    def status(self, path: str, st: "os.stat_result") -> "tuple[str, list[Any] | None]":
        """Returns (DELIVERED, SEEN or OWN; the row that shows it, or None)."""
        row = self.match(self.journal.known.get(path, []), path, st)
        return (OWN, None) if row is None else (row[STATUS], row)

    def match(
        self, rows: "list[list[Any]]", path: str, st: "os.stat_result", written: bool = True
    ) -> "list[Any] | None":
        """Returns the newest of `rows` that describes the present file, or None. written: True accepts a file that was
        written again since, with the same bytes."""
        row: list[Any]
        for row in reversed(rows):
            if unchanged(row, st) and (row[KIND] != "l" or self.target(path) == row[LINK]):
                return row
        for row in reversed(rows):
            is_file = written and row[KIND] == "f" and stat.S_ISREG(st.st_mode)
            if is_file and row[DIGEST] and row[SIZE] == st.st_size and row[DIGEST] == self.digest(path):
                return row
        return None

    def target(self, path: str) -> str:
        return decode(os.readlink(self.dest.at(encode(path))))

    def claimed(
        self, path: str, st: "os.stat_result", by: "Collection[str]" = (DELIVERED, SEEN), written: bool = True
    ) -> bool:
        """Returns whether another delivery, to this path or to a folder around it, delivered or saw the present file.
        by: the statuses of a row that count. written: see match()."""
        full = at = os.path.join(self.dest.name, encode(path))
        while at != b"/":
            if at not in self.others:
                self.others[at] = [known for meta, known in deliveries_to(at) if meta != self.mine]
            inside = decode(os.path.relpath(full, at) if at != full else os.path.basename(at))
            found = (self.match(known.get(inside, []), path, st, written) for known in self.others[at])
            if any(row is not None and row[STATUS] in by for row in found):
                return True
            at = os.path.dirname(at)
        return False

    @property
    def mine(self) -> "tuple[int, int] | None":
        st = os.stat(self.journal.meta) if self.journal.meta else None  # since.py has no delivery, and so no folder
        return st and (st.st_dev, st.st_ino)


def deliveries_to(target: bytes) -> "Iterator[tuple[tuple[int, int], dict[str, list[Any]]]]":
    """Yields, for each delivery to this folder or file, (device and inode of the state folder; path -> rows)."""
    for meta, st in delivered_to(target, map(encode, (CODE_STATE, DATA_STATE))):
        yield (st.st_dev, st.st_ino), Journal(meta).known
