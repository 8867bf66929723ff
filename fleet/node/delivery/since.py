"""Finds the files that a run wrote: the files in a folder that are new or changed since the run began."""

import os
from contextlib import suppress

from fleet.node.base.beneath import Beneath, made_in, reach
from fleet.node.base.errors import Refused
from fleet.node.base.run_folder import run_folder
from fleet.node.base.types import Callable, chain
from fleet.node.delivery.journal import DELIVERED, Journal
from fleet.node.delivery.ownership import Ownership, look
from fleet.node.delivery.tree import Walk
from fleet.protocol.state import ATTEMPT, SPEC

MOVE_NS = 2 * 10**9  # after a move, the ctimes of a folder and of its parent differ by less, even in whole seconds


def clock(folder: str) -> "float | None":
    """Returns the Unix time of the clock that dates new files in this folder. Returns None if no file can be made
    there."""
    probe = made_in(os.fsencode(folder))
    return probe.st_mtime if probe else None


def beginning(run: str, root: str) -> int:
    """Returns when a run began, in ns, by the clock of the file system of `root`. That is the mtime of a file that
    fleet wrote at the beginning. Raises Refused if the node no longer knows the run."""
    folder = run_folder(run)
    unknown = Refused("run %s is not known here any more" % run, "a path of what it wrote: fleet get ./PATH")
    if folder is None:
        raise unknown
    starts = [folder, *(os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(ATTEMPT))]
    marks = [os.stat(mark) for mark in (os.path.join(start, SPEC) for start in starts) if os.path.exists(mark)]
    if not marks:
        raise unknown
    mark = min(mark.st_mtime_ns for mark in marks)
    if marks[0].st_dev != os.stat(root).st_dev:
        here, there = clock(folder), clock(root)
        apart = there - here if here and there else 0.0
        if abs(apart) > 0.5:  # root is on a file server with its own clock: disks of one machine share a clock
            return mark + int((apart - 1.0) * 1e9)
    return mark


def delivered(root: str) -> "Callable[[str], bool]":
    """Returns a function that takes a path in root, and returns whether a sync put the present file there."""
    dest = Beneath(reach(os.fsencode(os.path.realpath(root))))
    owner = Ownership(dest, Journal(b""))

    def is_delivered(path: str) -> bool:
        with suppress(Refused, OSError):  # in doubt, the file counts as the run's
            st = look(dest, path)
            return st is not None and owner.claimed(path, st, (DELIVERED,), written=False)
        return False

    return is_delivered


def written_since(
    mark: int, walk: Walk, entries: "list[chain.Entry]", is_delivered: "Callable[[str], bool]"
) -> "list[chain.Entry]":
    """Returns the entries that are new or changed since a run began, and the parent folders of these. mark: the run's
    beginning, in ns. walk: has the times of the entries. is_delivered: see delivered().

    It also compares the ctime, which no program can set: tar, cp -p and mv keep the mtime of a file. It omits files
    that a sync put there."""

    def is_since(when: int) -> bool:  # some file systems store whole seconds only
        return when >= (mark if when % 10**9 else mark // 10**9 * 10**9)

    kept: set[str] = set()
    moved_here: set[str] = set()
    filled = {entry[0].rpartition("/")[0] for entry in entries}
    for path, kind, *_ in entries:
        mtime, ctime = walk.times[path]
        around = path.rpartition("/")[0]
        is_moved = kind == "d" and is_since(ctime) and not is_since(mtime)
        # A move of a folder also changes the times of its parent; chmod and chown do not. Programs may set the parent's
        # mtime back, but never its ctime. The mtime 0 shows a followed link to a folder: the folder's times are unknown
        changed = walk.times[around]
        if around in moved_here or is_moved and (not changed[0] or max(changed) >= ctime - MOVE_NS):
            moved_here.add(path)  # a folder that was moved here, with all that is in it
    for path, kind, *_ in reversed(entries):  # backwards: a folder comes after its contents
        is_new = path in moved_here or is_since(max(walk.times[path]))
        if path in kept or is_new and (kind != "d" or path not in filled) and not is_delivered(path):
            kept.update((path, path.rpartition("/")[0]))
    return [entry for entry in entries if entry[0] in kept]
