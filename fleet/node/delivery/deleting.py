"""Deletes what a delivery takes away. Where that is most of what is there, it needs consent: a source that was emptied
by mistake (rm, a file system that is not mounted) looks like that."""

import os
import stat
from collections import Counter

from fleet.node.base.beneath import Beneath
from fleet.node.base.types import Any, Callable, Iterable, code
from fleet.node.base.wire import decode, encode
from fleet.node.delivery.compare import Comparison
from fleet.node.delivery.journal import DELIVERED, DIGEST, KIND, PATH, SIZE
from fleet.node.delivery.ownership import OWN, look

MANY = 20  # files of a folder, from which on more than half of them counts as most
NAMED = 5


def gone_of(told: "Comparison") -> "list[list[Any]]":
    """Returns the rows of what was delivered or seen, is here, and is not in the source's list."""
    journal = told.owner.journal
    if told.same and not journal.state["also"]:
        return []
    listed = {entry[PATH] for entry in told.entries}
    rows = [versions[-1] for path, versions in journal.known.items() if path not in listed]
    return [row for row in rows if look(told.owner.dest, row[PATH]) is not None]


def drop(told: "Comparison", gone: "list[list[Any]]", excluded: "set[str]") -> None:
    """Decides what goes: what the source has no more, but for what its patterns leave out, what is not as it was
    delivered, and what was there before. The deepest comes first."""
    deleted: set[str] = set()
    dest = told.owner.dest
    for row in sorted(gone, reverse=True):
        path, st = row[PATH], look(dest, row[PATH])
        if st is None:
            continue
        status = told.owner.status(path, st)[0]
        if stat.S_ISDIR(st.st_mode) and (path in excluded or holds(dest, path, deleted)):
            told.also.append(row)
        elif path in excluded:  # of another source it is left as the node's own: the user was not asked about it
            told.also += [] if told.another else [row]
        elif status == DELIVERED and not told.owner.claimed(path, st):
            told.delete.append((path, st))
            deleted.add(path)
        elif status == OWN:
            told.kept.append(path)
    for path, entry in list(told.changed.items()):
        st = told.found[path]
        if st is not None and stat.S_ISDIR(st.st_mode) and entry[KIND] != "d":
            told.holding[path] = holds(dest, path, deleted)
            if told.holding[path]:
                del told.changed[path]
                told.needed.pop(path, None)
                told.own[path] = entry


def holds(dest: "Beneath", folder: str, deleted: "set[str]") -> str:
    """Returns something in a folder that is not deleted, or "". deleted: what is, the deepest of it known first."""
    for name in sorted(os.listdir(dest.at(encode(folder)))):
        path = folder + "/" + decode(name)
        if path not in deleted:
            st = look(dest, path)
            if st is not None and stat.S_ISDIR(st.st_mode):
                path = holds(dest, path, deleted) or path
            return path
    return ""


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
    """Returns the refusal to delete so much, None without one. gone, excluded: as drop() has them. most:
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
