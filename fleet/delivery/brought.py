"""Records what `fleet get` put on this machine, as it was then. So a later get, or sync, knows who made a file.

~/.fleet/brought/KEY: of one folder, two lines of JSON: the folder, and of each path in it what is in Got; of one that
is being put in place, also what was there before.
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
from fleet.node.base.locks import alone
from fleet.protocol.state import FETCHED, HOME

MOST_FOLDERS = 300  # the ones got into last
MOST_FILES = 200_000  # of each


class Got(NamedTuple):
    """A file or link as it was put in place. sha256: of its bytes, or of where it leads. version: of it there; host:
    whose."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    sha256: str
    version: str = ""
    host: str = ""


def got(place: bytes, sha256: str, version: str = "", host: str = "") -> Got:
    """Returns the record of the file that is at a path now."""
    return Got(*_now(os.lstat(place)), sha256, version, host)


def _now(info: os.stat_result) -> tuple[int, int, int, int]:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def digest_of(place: bytes) -> str | None:
    """sha256 as in Got of what is there; None where that is no file or link, or cannot be read."""
    with contextlib.suppress(OSError):
        if os.path.islink(place):
            return hashlib.sha256(os.readlink(place)).hexdigest()
        return file_digest(place, os.O_NOFOLLOW)
    return None


def still(place: bytes, known: Sequence[Got], info: os.stat_result | None = None) -> Got | None:
    """Returns which of them is there, with its times as they are. Its bytes are read where these or its inode are other
    ones. info: lstat of the place."""
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


def note(folder: Path, files: Mapping[str, Sequence[Got]]) -> None:
    """Files were put in place below `folder`, by their paths in it, or are going to be: then any of the versions may be
    there. OSError, UsageError where that cannot be kept."""
    real, path = os.path.realpath(folder), store_of(folder)
    own.home(Path.home(), FETCHED)
    with open(path.with_name(".lock"), "ab", opener=own.private) as lock, alone(lock.fileno()):
        before = (each for each in known_in(folder).items() if each[0] not in files)
        kept = [each for each in before if os.path.lexists(os.path.join(real, each[0]))] + list(files.items())
        lines = json.dumps(real), json.dumps(dict(kept[-MOST_FILES:]))
        replace_file(bytes(path), "\n".join(lines).encode(), 0o600, durable=False)  # to lose it costs a question
        others = sorted(path.parent.glob("[0-9a-f]*"), key=lambda other: other.stat().st_mtime_ns)
        for other in others[:-MOST_FOLDERS]:
            other.unlink()


def known_in(folder: Path) -> dict[str, list[Got]]:
    """Returns all that gets into this folder ever put below it, by path, whatever has become of it."""
    return _read(store_of(folder))[1]


def unchanged(root: Path) -> set[str]:
    """Paths below `root`, relative to it, of what get put there and is unchanged since. Looks at nothing else."""
    real, found = os.path.join(os.path.realpath(root), ""), set[str]()
    for path in store_of(root).parent.glob("[0-9a-f]*"):
        around, files = _read(path, real)
        for name, known in files.items():
            full = around + name
            if full.startswith(real) and still(os.fsencode(full), known):
                found.add(full[len(real) :])
    return found


def store_of(folder: Path) -> Path:
    """Returns the file that records what was put below a folder."""
    real = os.fsencode(os.path.realpath(folder))
    return Path.home() / HOME / FETCHED / hashlib.sha256(real).hexdigest()[:32]


def _read(path: Path, near: str = "") -> tuple[str, dict[str, list[Got]]]:
    """(the folder, ending in a slash; its files). Nothing of a file that does not hold what it must, nor of a folder
    that neither lies in `near` nor around it."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        first, _, rest = own.read_own(path).partition(b"\n")
        folder = os.path.join(json.loads(first), "")
        if folder.startswith(near) or near.startswith(folder):
            return folder, {name: [Got(*it) for it in versions] for name, versions in json.loads(rest).items()}
    return "", {}
