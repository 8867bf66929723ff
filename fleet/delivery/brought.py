"""Records the files that `fleet get` put on this machine. A later get or sync then knows that fleet made these files.

The record of a destination folder has two lines of JSON: the folder's path, and {path in it: [Got, ...]}. While a file
is being replaced, its list also has the version that was there before. store_of() returns the record's path.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fleet import own
from fleet.node.base.files import file_digest, replace_file
from fleet.node.base.locks import exclusive_lock
from fleet.protocol.state import FETCHED, HOME

MOST_FOLDERS = 300  # folders that have a record; the latest ones are kept
MOST_FILES = 200_000  # files in the record of a folder


class Got(NamedTuple):
    """Describes a file or link as it was put in place. sha256: digest of the file's bytes, or of the link's target.
    host: the node that the file comes from. version: names the file's state on that node, see node/delivery/give.py."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    sha256: str
    version: str = ""
    host: str = ""


def record_of(place: bytes, sha256: str, version: str = "", host: str = "") -> Got:
    """Returns the record of the file that is at a path now."""
    return Got(*_now(os.lstat(place)), sha256, version, host)


def _now(info: os.stat_result) -> tuple[int, int, int, int]:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def digest_of(place: bytes) -> str | None:
    """Returns the sha256 (as in Got) of a file or link; None if it is neither, or cannot be read."""
    with contextlib.suppress(OSError):
        if os.path.islink(place):
            return hashlib.sha256(os.readlink(place)).hexdigest()
        return file_digest(place, os.O_NOFOLLOW)
    return None


def present_version(place: bytes, known: Sequence[Got], info: os.stat_result | None = None) -> Got | None:
    """Returns the known version that is at `place`, with its present times; None if no known version is there. The
    bytes are read only if the times or the inode differ from the record. info: lstat of the place."""
    try:
        now = _now(info or os.lstat(place))
    except OSError:
        return None
    for each in known:
        if each[:4] == now:
            return each
    alike = [each for each in known if each.size == now[0]]
    digest = digest_of(place) if alike else None
    return next((Got(*now, *each[4:]) for each in alike if each.sha256 == digest), None)


def record_files(folder: Path, files: Mapping[str, Sequence[Got]]) -> None:
    """Records files that were put in place below `folder`, or will be. files: path in the folder -> the versions of
    which one is there. Raises OSError or UsageError if the record cannot be written."""
    real, path = os.path.realpath(folder), store_of(folder)
    own.home(Path.home(), FETCHED)
    with open(path.with_name(".lock"), "ab", opener=own.private) as lock, exclusive_lock(lock.fileno()):
        before = (each for each in known_in(folder).items() if each[0] not in files)
        kept = [each for each in before if os.path.lexists(os.path.join(real, each[0]))] + list(files.items())
        lines = json.dumps(real), json.dumps(dict(kept[-MOST_FILES:]))
        replace_file(bytes(path), "\n".join(lines).encode(), 0o600, durable=False)  # losing the record costs a question
        others = sorted(path.parent.glob("[0-9a-f]*"), key=lambda other: other.stat().st_mtime_ns)
        for other in others[:-MOST_FOLDERS]:
            other.unlink()


def known_in(folder: Path) -> dict[str, list[Got]]:
    """Returns path -> versions of all that `fleet get` put below this folder. The files may have changed since."""
    return _read(store_of(folder))[1]


def unchanged(root: Path) -> set[str]:
    """Returns the paths below `root`, relative to it, of files that `fleet get` put there and that did not change
    since."""
    real, found = os.path.join(os.path.realpath(root), ""), set[str]()
    for path in store_of(root).parent.glob("[0-9a-f]*"):
        around, files = _read(path, real)
        for name, known in files.items():
            full = around + name
            if full.startswith(real) and present_version(os.fsencode(full), known):
                found.add(full[len(real) :])
    return found


def store_of(folder: Path) -> Path:
    """Returns the file that records what was put below a folder."""
    real = os.fsencode(os.path.realpath(folder))
    return Path.home() / HOME / FETCHED / hashlib.sha256(real).hexdigest()[:32]


def _read(path: Path, near: str = "") -> tuple[str, dict[str, list[Got]]]:
    """Returns (the folder with a final slash, its files); ("", {}) for an invalid record, and for a folder that is
    neither inside `near` nor around it."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        first, _, rest = own.read_own(path).partition(b"\n")
        folder = os.path.join(json.loads(first), "")
        if folder.startswith(near) or near.startswith(folder):
            return folder, {name: [Got(*it) for it in versions] for name, versions in json.loads(rest).items()}
    return "", {}
