"""What this head delivered last of each source: in ~/.fleet/deliveries a file for each, a line of JSON and the packed
manifest. So it is known without a question to a node what a sync would delete, and how the code here has changed since.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fleet import own
from fleet.delivery.source_id import ids_around
from fleet.delivery.tree import Tree
from fleet.errors import UsageError
from fleet.node.base.files import lstat, replace_file
from fleet.node.base.wire import encode
from fleet.node.delivery.journal import BROKEN, unpack
from fleet.protocol.messages.chain import Entry
from fleet.protocol.messages.code import Source
from fleet.protocol.state import DELIVERIES, HOME

MOST, MOST_BYTES = 100, 16 << 20  # the ones that were delivered last


class Delivered(NamedTuple):
    """when: by the head's clock. digest, entries: of the manifest. path: where the source was."""

    path: str
    when: str
    digest: str
    entries: list[Entry]

    def changed(self, root: Path) -> int:
        """Returns how many of its files are others, or none, in the source now, by size and time."""
        known = ((entry, lstat(encode(f"{root}/{entry[0]}"))) for entry in self.entries if entry[1] == "f")
        return sum(st is None or (st.st_size, st.st_mtime_ns) != tuple(entry[3:5]) for entry, st in known)


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
        day, moment = (time.strftime(form, time.localtime(said["at"])) for form in ("%Y-%m-%d ", "%H:%M"))
        day = day * (day != time.strftime("%Y-%m-%d "))
        return Delivered(str(said["path"]), day + moment, str(said["digest"]), list(map(tuple, unpack(packed))))
    except BROKEN:
        return None


def last_of(root: Path, name: str | None = None) -> Delivered | None:
    """Returns what was delivered last of the source that this folder is. name: the user's own id for it."""
    ids = [name] if name else ids_around(root)[root]
    return next((found for each in ids if (found := find(each)) is not None), None)


def folder_of(source_id: str, ids: Mapping[Path, Collection[str]]) -> Path | None:
    """Returns which of the folders, known by these ids, is that source; None where none is."""
    if not re.fullmatch("[0-9a-f]{32}", source_id):  # the user's own name for it
        last = find(source_id)
        return next((folder for folder in ids if last is not None and str(folder) == last.path), None)
    return next((folder for folder in ids if source_id in ids[folder]), None)
