"""Decides what a delivery deletes on its node. A delivery that would delete most of a folder's files needs the user's
consent: the source may be empty by mistake (after rm, or because a file system is not mounted)."""

import os
import stat
from collections import Counter

from fleet.node.base.beneath import Beneath
from fleet.node.base.types import Any, Callable, Iterable, code
from fleet.node.base.wire import decode, encode
from fleet.node.delivery.compare import Comparison
from fleet.node.delivery.journal import DELIVERED, DIGEST, KIND, PATH, SIZE
from fleet.node.delivery.ownership import OWN, look

MANY = 20  # if a folder has at least this many files, more than half of them are "most" of its files
NAMED = 5  # a message names this many files


def gone_of(comparison: "Comparison") -> "list[list[Any]]":
    """Returns the newest journal row of each gone path. That is a path which a delivery put there or saw, which still
    exists on the node, and which is not in the source's list."""
    journal = comparison.owner.journal
    if comparison.same and not journal.state["also"]:
        return []
    listed = {entry[PATH] for entry in comparison.entries}
    rows = [versions[-1] for path, versions in journal.known.items() if path not in listed]
    return [row for row in rows if look(comparison.owner.dest, row[PATH]) is not None]


def drop(comparison: "Comparison", gone: "list[list[Any]]", excluded: "set[str]") -> None:
    """Fills comparison.delete: the gone paths that are as they were delivered. Other gone paths stay: those that the
    source excludes, those that were changed on the node or existed before the delivery, and folders that hold a path
    which stays. In comparison.delete a folder comes after its contents. gone: rows of gone_of(). excluded: gone paths
    that the source excludes.

    Then checks each folder that is in the way of a file or link. If it will not be empty, it is the node's own."""
    deleted: set[str] = set()
    dest = comparison.owner.dest
    for row in sorted(gone, reverse=True):
        path, st = row[PATH], look(dest, row[PATH])
        if st is None:
            continue
        status = comparison.owner.status(path, st)[0]
        if stat.S_ISDIR(st.st_mode) and (path in excluded or holds(dest, path, deleted)):
            comparison.also.append(row)
        elif path in excluded:  # with other sources the row is dropped: the path becomes own, as no consent covers it
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
    """Returns a path in the folder that will not be deleted, or "" if there is none. deleted: the paths that will."""
    for name in sorted(os.listdir(dest.at(encode(folder)))):
        path = folder + "/" + decode(name)
        if path not in deleted:
            st = look(dest, path)
            if st is not None and stat.S_ISDIR(st.st_mode):
                path = holds(dest, path, deleted) or path
            return path
    return ""


def folders_around(path: str) -> "list[str]":
    """Returns all folders around a path, from "", the destination, on."""
    return [""] + [path[:at] for at, char in enumerate(path) if char == "/"]


def emptied(files: "Iterable[str]", lost: "Iterable[str]") -> "list[tuple[int, str]]":
    """Returns (number of lost files, folder) for each folder that has at least MANY files and loses more than half of
    them. Also returns the destination, "", if it loses all its files. files: all delivered paths. lost: the lost
    ones."""
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
    """Returns (number of lost files, folder) for each folder that loses too many files. gone, excluded: as for drop().

    most: the number of files that may be deleted, or "all". None allows any number that is not most of a folder's
    files. elsewhere: takes rows [path, size, sha256] of lost files, and returns the paths of those that the source has
    at another path."""
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
    """Returns the message about what would be lost, if the delivery needs its user's consent for that. Returns None if
    the delivery may go on. folders: as losing_most() returns them. agreed: the other sources whose files may be lost;
    True means all sources."""
    deleted = comparison.deleted_files
    replaced = sum(comparison.loses(path) for path in comparison.changed)
    has_files = any(entry[KIND] != "d" for entry in comparison.entries)
    others = comparison.others if agreed is not True or not has_files else []
    is_agreed = agreed is True or all(each in agreed for each in others)
    is_of_sources = False
    if has_files or not folders:  # if the source has no file, a consent to replace other sources' files does not count
        is_of_sources = bool(others and not is_agreed and (deleted or replaced))
        if not (is_of_sources or folders) or is_agreed and others:  # a user who agreed has seen how many are deleted
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
        "named": sorted(deleted)[: NAMED + 1],  # one more: if only one is left, a message names it as well
    }
