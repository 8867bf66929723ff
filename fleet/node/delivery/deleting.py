"""Decides what a delivery deletes on its node. To delete most of the files there, it needs the user's consent: the
source may be empty by mistake (rm, a file system that is not mounted)."""

import os
import stat
from collections import Counter

from fleet.node.base.beneath import Beneath
from fleet.node.base.types import Any, Callable, Iterable, code
from fleet.node.base.wire import decode, encode
from fleet.node.delivery.compare import Comparison
from fleet.node.delivery.journal import DELIVERED, DIGEST, KIND, PATH, SIZE
from fleet.node.delivery.ownership import OWN, look

MANY = 20  # in a folder of at least so many files, more than half of them are "most"
NAMED = 5


def gone_of(comparison: "Comparison") -> "list[list[Any]]":
    """Returns the latest journal row of each path that was delivered or seen, still exists, and is not in the source's
    list."""
    journal = comparison.owner.journal
    if comparison.same and not journal.state["also"]:
        return []
    listed = {entry[PATH] for entry in comparison.entries}
    rows = [versions[-1] for path, versions in journal.known.items() if path not in listed]
    return [row for row in rows if look(comparison.owner.dest, row[PATH]) is not None]


def drop(comparison: "Comparison", gone: "list[list[Any]]", excluded: "set[str]") -> None:
    """Decides what is deleted: paths that the source no longer has, if they are as they were delivered. Some are kept:
    paths that the source excludes, paths that were changed on the node or were there before the delivery, and folders
    that hold a kept path. In comparison.delete a folder comes after its contents.

    Then checks folders that are in the way of a file or link. If one will not be empty, it counts as the node's own."""
    deleted: set[str] = set()
    dest = comparison.owner.dest
    for row in sorted(gone, reverse=True):
        path, st = row[PATH], look(dest, row[PATH])
        if st is None:
            continue
        status = comparison.owner.status(path, st)[0]
        if stat.S_ISDIR(st.st_mode) and (path in excluded or holds(dest, path, deleted)):
            comparison.also.append(row)
        elif path in excluded:  # if another source delivered it, it becomes the node's own: no consent covers it
            comparison.also += [] if comparison.others else [row]
        elif status == DELIVERED and not comparison.owner.claimed(path, st):
            comparison.delete.append((path, st))
            deleted.add(path)
        elif status == OWN:
            comparison.kept.append(path)
    for path, entry in list(comparison.changed.items()):
        st = comparison.found[path]
        if st is not None and stat.S_ISDIR(st.st_mode) and entry[KIND] != "d":
            comparison.holding[path] = holds(dest, path, deleted)
            if comparison.holding[path]:
                del comparison.changed[path]
                comparison.needed.pop(path, None)
                comparison.own[path] = entry


def holds(dest: "Beneath", folder: str, deleted: "set[str]") -> str:
    """Returns a path in a folder that will stay, or "". deleted: the paths that will be deleted."""
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
    """Returns (number of files lost, folder) for each folder with MANY files or more that loses more than half of them.
    The destination, "", also counts if it loses all its files."""
    before = Counter(folder for path in files for folder in folders_around(path))
    after = Counter(folder for path in lost for folder in folders_around(path))
    return [
        (count, folder)
        for folder, count in after.items()
        if (before[folder] >= MANY and 2 * count > before[folder]) or (not folder and count == before[folder])
    ]


def losing_most(
    comparison: "Comparison",
    gone: "list[list[Any]]",
    excluded: "set[str]",
    most: "int | str | None",
    elsewhere: "Callable[[list[Any]], Any]",
) -> "list[tuple[int, str]]":
    """Returns (number of files lost, folder) for each folder that loses too many. gone, excluded: as for drop().

    most: the number of files that may be deleted, "all", or None: less than most of any folder. elsewhere: takes rows
    [path, size, sha256] of lost files, returns the paths of those that the source has under another name."""
    deleted = len(comparison.deleted_files)
    if isinstance(most, str) or deleted <= (most or 0):
        return []
    if most is not None:
        return [(deleted, "")]
    files = [
        path for path, rows in comparison.owner.journal.known.items() if rows[-1][KIND] != "d" and path not in excluded
    ]
    lost = {row[PATH]: row for row in gone if row[KIND] != "d" and row[PATH] not in excluded}
    if emptied(files, lost):
        for path in elsewhere([[row[PATH], row[SIZE], row[DIGEST]] for row in lost.values()]):
            lost.pop(path, None)
    return emptied(files, lost)


def missing_consent(comparison: "Comparison", folders: "list[tuple[int, str]]", agreed: "Any") -> "code.Consent | None":
    """Returns the message about what a delivery would lose without its user's consent; None where it may go on.
    folders: as losing_most() returns them. agreed: the other sources whose files may be lost; True: any."""
    deleted = comparison.deleted_files
    replaced = sum(comparison.loses(path) for path in comparison.changed)
    has_files = any(entry[KIND] != "d" for entry in comparison.entries)
    others = comparison.others if agreed is not True or not has_files else []
    is_agreed = agreed is True or all(each in agreed for each in others)
    is_of_sources = False
    if has_files or not folders:  # consent to other sources does not count where this source has no file
        is_of_sources = bool(others and not is_agreed and (deleted or replaced))
        if not (is_of_sources or folders) or is_agreed and others:  # the user has seen how many files are deleted
            return None
    return {
        "event": "consent",
        "to": "sources" if is_of_sources else "deletion",
        "dest": decode(comparison.owner.dest.name),
        "sources": others,
        "folder": max(folders)[1] if folders else "",
        "deleted": len(deleted),
        "replaced": replaced,
        "of": sum(rows[-1][KIND] != "d" for rows in comparison.owner.journal.known.values()),
        "named": sorted(deleted)[: NAMED + 1],  # the last one is named, too
    }
