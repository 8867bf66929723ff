"""What this head delivered last of each source: in ~/.fleet/deliveries a file for each, a line of JSON and the packed
manifest. So it is known without a question to a node what a sync would delete, and how the code here has changed since.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fleet import own
from fleet.delivery.source_id import ids_around
from fleet.delivery.tree import Tree
from fleet.errors import UsageError
from fleet.node.base.files import replace_file
from fleet.node.delivery.journal import BROKEN, unpack
from fleet.protocol.messages.chain import Entry
from fleet.protocol.messages.code import Source
from fleet.protocol.state import DELIVERIES, HOME

MOST, MOST_BYTES = 100, 16 << 20  # the ones that were delivered last


@dataclass(frozen=True)
class Delivered:
    """at: when, by the head's clock. digest, packed: of the manifest. path: where the source was."""

    path: str
    at: float
    digest: str
    packed: bytes

    @cached_property
    def entries(self) -> list[Entry]:
        return [(path, kind, mode, size, mtime, link) for path, kind, mode, size, mtime, link in unpack(self.packed)]

    @property
    def when(self) -> str:
        """Returns the time of day, with the date where that is another one than today's."""
        day, today = (time.strftime("%Y-%m-%d ", time.localtime(moment)) for moment in (self.at, time.time()))
        return day * (day != today) + time.strftime("%H:%M", time.localtime(self.at))

    def changed(self, root: Path) -> int:
        """Returns how many of its files are others, or none, in the source now, by size and time."""
        return sum(entry[1] == "f" and entry[3:5] != _look(root / entry[0]) for entry in self.entries)


def _look(path: Path) -> tuple[int, int] | None:
    try:
        info = path.lstat()
    except (OSError, ValueError):
        return None
    return info.st_size, info.st_mtime_ns


def _name(source_id: str) -> str:
    return hashlib.sha256(source_id.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def note(source: Source, tree: Tree) -> None:
    """Keeps that this was delivered. A home that cannot be written keeps nothing."""
    before = find(source["id"])
    if before is not None and (before.digest, before.path) == (tree.digest, source["path"]):
        return
    with suppress(OSError, UsageError):
        folder = own.home(Path.home(), DELIVERIES)
        line = json.dumps({"path": source["path"], "at": time.time(), "digest": tree.digest}).encode() + b"\n"
        if len(tree.packed) < MOST_BYTES:
            replace_file(bytes(folder / _name(source["id"])), line + tree.packed, 0o600)
        for old in sorted(folder.iterdir(), key=lambda path: -path.stat().st_mtime)[MOST:]:
            old.unlink()


def find(source_id: str) -> Delivered | None:
    """Returns what was delivered last of a source, None where that is not known."""
    try:
        line, _, packed = own.read_own(Path.home() / HOME / DELIVERIES / _name(source_id)).partition(b"\n")
        said = json.loads(line)
        found = Delivered(str(said["path"]), float(said["at"]), str(said["digest"]), packed)
        return found if found.entries is not None else None
    except BROKEN:
        return None


def last_of(root: Path, name: str | None = None) -> Delivered | None:
    """Returns what was delivered last of the source that this folder is. name: the user's own id for it."""
    ids = [name] if name else ids_around(root)[root]
    return next((found for each in ids if (found := find(each)) is not None), None)


@dataclass(frozen=True)
class Sources:
    """The sources of this head around a folder. ids: of each folder around."""

    ids: Mapping[Path, frozenset[str]]

    @classmethod
    def around(cls, folder: Path) -> Sources:
        return cls(ids_around(folder))

    def root(self, source_id: str) -> Path | None:
        """Returns the folder here that is that source, None where none is."""
        known = next((folder for folder, ids in self.ids.items() if source_id in ids), None)
        if known is None and not re.fullmatch("[0-9a-f]{32}", source_id):  # the user's own name for it
            last = find(source_id)
            known = next((folder for folder in self.ids if last is not None and str(folder) == last.path), None)
        return known
