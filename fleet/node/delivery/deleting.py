"""A delivery that takes away most of what is there. A source that was emptied by mistake (rm, a file system that is not
mounted) looks like that; so it needs consent."""

import stat
from collections import Counter

from fleet.node.base.types import Any, Callable, Iterable, code
from fleet.node.base.wire import decode
from fleet.node.delivery.compare import Comparison
from fleet.node.delivery.journal import DIGEST, KIND, PATH, SIZE

MANY = 20  # files of a folder, from which on more than half of them counts as most
NAMED = 5


def folders_around(path: str) -> "list[str]":
    """Returns the folders that a path is in; "" is the destination."""
    return [""] + [path[:at] for at, char in enumerate(path) if char == "/"]


def emptied(files: "Iterable[str]", lost: "Iterable[str]") -> "list[tuple[int, str]]":
    """Returns (number of files lost, folder) of each folder that loses most of its files: all, or more than half of
    many."""
    before = Counter(folder for path in files for folder in folders_around(path))
    after = Counter(folder for path in lost for folder in folders_around(path))
    return [
        (count, folder)
        for folder, count in after.items()
        if (before[folder] >= MANY and 2 * count > before[folder]) or (not folder and count == before[folder])
    ]


def too_many(
    told: "Comparison",
    gone: "list[list[Any]]",
    excluded: "set[str]",
    most: "int | str | None",
    elsewhere: "Callable[[list[Any]], Any]",
) -> "code.Most | None":
    """Returns the refusal to delete so much, None without one. gone, excluded: as Comparison.drop() has them. most:
    files that may be deleted, "all", or None: not most of them. elsewhere: returns of [path, size, sha256] the paths of
    what the source has at another place."""
    deleted = [path for path, st in told.delete if not stat.S_ISDIR(st.st_mode)]
    if isinstance(most, str) or len(deleted) <= (most or 0):
        return None
    folders = [(len(deleted), "")]
    known = told.owner.journal.known
    if most is None:
        files = [path for path, rows in known.items() if rows[-1][KIND] != "d" and path not in excluded]
        lost = {row[PATH]: row for row in gone if row[KIND] != "d" and row[PATH] not in excluded}
        if emptied(files, lost):
            for path in elsewhere([[row[PATH], row[SIZE], row[DIGEST]] for row in lost.values()]):
                lost.pop(path, None)
        folders = emptied(files, lost)
    if not folders:
        return None
    return {
        "event": "most",
        "dest": decode(told.owner.dest.name),
        "folder": max(folders)[1],
        "deleted": len(deleted),
        "of": sum(rows[-1][KIND] != "d" for rows in known.values()),
        "named": sorted(deleted)[:NAMED],
        "source": None,
    }
