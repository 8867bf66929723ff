"""What a source is known by: an id, kept in ~/.fleet/source-ids, so that it is the same one when its host or folder
gets another name; and, while a sync is under way, an empty folder in it that shows a node that its destination is the
source itself, through whichever link or mount.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleet import own
from fleet.node.base.files import replace_file
from fleet.protocol.messages.code import Source
from fleet.protocol.state import SOURCE_IDS, SOURCE_MARK

MOST = 1000  # the ones that were used last


def identified(root: Path, name: str | None = None) -> Source:
    """name: the user's own id for it, or "" where it needs none."""
    if name is None:
        try:
            name = _id(root)
        except OSError:  # a home that cannot be written
            name = ""
    return {"host": socket.gethostname(), "path": str(root), "id": name}


@contextlib.contextmanager
def marked(root: Path) -> Iterator[str | None]:
    """The name of the empty folder that lies in it meanwhile; None where nothing can be written there."""
    mark, made = f".{secrets.token_hex(16)}{SOURCE_MARK}", None
    with contextlib.suppress(OSError):
        for left in root.glob(f".*{SOURCE_MARK}"):  # by a kill; or by a sync that has been heard by its hosts long ago
            if left.stat().st_mtime < root.stat().st_ctime - 86400:
                left.rmdir()
    with contextlib.suppress(OSError):  # read only, or another user's
        (root / mark).mkdir(0o755)
        made = mark
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):
            (root / mark).rmdir()


def _id(root: Path) -> str:
    """Of this path; or of a folder that was at another one, which is gone."""
    store = own.home(Path.home()) / SOURCE_IDS
    info = os.stat(root)
    here = {"path": os.fsencode(root).decode("utf-8", "backslashreplace"), "inode": [info.st_dev, info.st_ino]}
    with open(f"{store}.lock", "ab", opener=own.private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = _read(store)
        mine = next((each for each in entries if each["path"] == here["path"]), None) or next(
            (each for each in entries if each["inode"] == here["inode"] and not os.path.lexists(each["path"])), None
        )
        kept = {"id": mine["id"] if mine else secrets.token_hex(16), **here}
        if kept != mine:
            rest = [each for each in entries if each is not mine]
            replace_file(bytes(store), json.dumps([*rest, kept][-MOST:]).encode(), 0o600)
    return str(kept["id"])


def _read(store: Path) -> list[dict[str, Any]]:
    """Nothing of a file that does not hold what it must."""
    try:
        found = own.read_json(store)
        return [each for each in found if {type(each["id"]), type(each["path"])} == {str} and len(each["inode"]) == 2]
    except (OSError, ValueError, LookupError, TypeError):
        return []
