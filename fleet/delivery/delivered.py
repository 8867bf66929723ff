"""Keeps, on the head, the manifest of the last delivery of each source. ~/.fleet/deliveries has a file for each source:
a line of JSON, then the packed manifest. So the head knows without a node what a sync would delete, and how the source
has changed since its last delivery.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fleet import own
from fleet.best_effort import best_effort
from fleet.delivery.source_id import ids_around
from fleet.delivery.tree import Tree
from fleet.errors import UsageError
from fleet.node.base.files import replace_file
from fleet.node.base.wire import encode
from fleet.node.delivery.journal import BROKEN, unpack
from fleet.protocol.messages.chain import Entry
from fleet.protocol.messages.code import Source
from fleet.protocol.state import DELIVERIES, HOME

MOST, MOST_BYTES = 100, 16 << 20  # sources (the last delivered ones are kept); bytes of a manifest


class Delivered(NamedTuple):
    """Holds the last delivery of a source. path: the source's path at that time. when: the time of the delivery, as
    text, by the head's clock. digest, entries: those of the delivered manifest."""

    path: str
    when: str
    digest: str
    entries: list[Entry]

    def changed(self, root: Path) -> int:
        """Returns how many of the delivered files now have another size or time in the source, or are gone."""
        count = 0
        for path, _kind, _mode, size, mtime, _link in [entry for entry in self.entries if entry[1] == "f"]:
            try:
                info = os.stat(encode(f"{root}/{path}"))
                count += (info.st_size, info.st_mtime_ns) != (size, mtime)
            except OSError:
                count += 1
        return count


def _file(source_id: str) -> Path:
    name = hashlib.sha256(source_id.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return Path.home() / HOME / DELIVERIES / name


def _read(source_id: str) -> tuple[dict[str, Any], bytes]:
    """Returns the line and the packed manifest. Raises one of BROKEN."""
    line, _, packed = own.read_own(_file(source_id)).partition(b"\n")
    return dict(json.loads(line)), packed


def note(source: Source, tree: Tree) -> None:
    """Keeps the manifest of a delivery. If the home cannot be written, nothing is kept."""
    new = {"path": source["path"], "digest": tree.digest}
    with suppress(*BROKEN):
        if new.items() <= _read(source["id"])[0].items():
            return
    with best_effort("keep the list of the files that were sent", (OSError, UsageError)):
        folder = own.home(Path.home(), DELIVERIES)
        if len(tree.packed) < MOST_BYTES:
            line = json.dumps({**new, "at": time.time()}).encode() + b"\n"
            replace_file(bytes(_file(source["id"])), line + tree.packed, 0o600)
        else:
            _file(source["id"]).unlink(missing_ok=True)  # an older file does not hold the last delivery
        for old in sorted(folder.iterdir(), key=lambda path: -path.stat().st_mtime)[MOST:]:
            old.unlink()


def find(source_id: str) -> Delivered | None:
    """Returns the last delivery of a source, None if that is not known."""
    try:
        line, packed = _read(source_id)
        day, moment = (time.strftime(form, time.localtime(line["at"])) for form in ("%Y-%m-%d ", "%H:%M"))
        day = day * (day != time.strftime("%Y-%m-%d "))
        return Delivered(str(line["path"]), day + moment, str(line["digest"]), list(map(tuple, unpack(packed))))
    except BROKEN:
        return None


def last_of(root: Path, name: str | None = None) -> Delivered | None:
    """Returns the last delivery of the source in the folder `root`. name: the user's own id for the source."""
    ids = [name] if name else ids_around(root)[root]
    return next((found for each in ids if (found := find(each)) is not None), None)


def folder_of(source_id: str, ids: Mapping[Path, Collection[str]]) -> Path | None:
    """Returns the folder that has this source id, or None. ids: folder -> the ids that it is known by."""
    if not re.fullmatch("[0-9a-f]{32}", source_id):  # it is the user's own id for the source
        last = find(source_id)
        return next((folder for folder in ids if last is not None and str(folder) == last.path), None)
    return next((folder for folder in ids if source_id in ids[folder]), None)
