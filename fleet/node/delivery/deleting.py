"""Decides what a delivery deletes on its node. To delete most of what is there, it needs consent: the source may have
been emptied by mistake (rm, a file system that is not mounted)."""

import os
import stat
from collections import Counter

from fleet.node.base.beneath import Beneath
from fleet.node.base.types import Any, Callable, Iterable, code
from fleet.node.base.wire import decode, encode
from fleet.node.delivery.compare import Comparison
from fleet.node.delivery.journal import DELIVERED, DIGEST, KIND, PATH, SIZE
from fleet.node.delivery.ownership import OWN, look

MANY = 20  # files: in a folder of that many, more than half of them are most
NAMED = 5


def gone_of(told: "Comparison") -> "list[list[Any]]":
    """Returns the latest journal row of each path that was delivered or seen, still exists, and is not in the source's
    list."""
    journal = told.owner.journal
    if told.same and not journal.state["also"]:
        return []
    listed = {entry[PATH] for entry in told.entries}
    rows = [versions[-1] for path, versions in journal.known.items() if path not in listed]
    return [row for row in rows if look(told.owner.dest, row[PATH]) is not None]


def drop(told: "Comparison", gone: "list[list[Any]]", excluded: "set[str]") -> None:
    """Decides what is deleted: what the source has no more, if it is as it was delivered. Kept are paths that the
    source excludes, what was changed on the node or was there before the delivery, and folders that hold anything kept.
    In told.delete a folder comes after what is in it.

    Then looks at folders in the way of a file or link: one that will not be empty counts as the node's own."""
    deleted: set[str] = set()
    dest = told.owner.dest
    for row in sorted(gone, reverse=True):
        path, st = row[PATH], look(dest, row[PATH])
        if st is None:
            continue
        status = told.owner.status(path, st)[0]
        if stat.S_ISDIR(st.st_mode) and (path in excluded or holds(dest, path, deleted)):
            told.also.append(row)
        elif path in excluded:  # after another source it stays as the node's own: the user did not consent to lose it
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
    """Returns a path in a folder that is not deleted, or "". deleted: the paths that are."""
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
    """Returns (number of files lost, folder) for each folder that loses more than half of its files, if it has MANY or
    more; and for the destination, "", also if it loses all."""
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
    """Returns the message that refuses to delete so many files, None if they may be deleted. gone, excluded: as for
    drop().

    most: the number of files that may be deleted, "all", or None: less than most of any folder. elsewhere: takes rows
    [path, size, sha256] of lost files, returns the paths of those that the source has under another name."""
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
