"""What a process of this machine does with a run, as it says itself: runs/RUN/state.json. It imports little, as verbs
look there that have nothing to do with runs."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from fleet import own
from fleet.errors import Reason
from fleet.events import Notice
from fleet.node.base.processes import start_time
from fleet.node.base.run_folder import boot_id, myself
from fleet.protocol.decode import decode
from fleet.protocol.state import STATE, WRITER, is_run_id
from fleet.rules.units import seconds

HELD = ".held"  # where a file system has no locks: who writes to a run's folder
OPTION = "--runs-dir"
MOST_BYTES = 1 << 20


class Who(TypedDict):
    """A process, so that no other one is taken for it. start: in ticks since that boot. space: of its pid."""

    pid: int
    start: int
    boot: str
    machine: str
    space: int


class State(TypedDict, total=False):
    """leader: who follows the run, None: nobody any more. since: when it began to. leads: whether the run is its to
    lead, and is not known to be over. lease: seconds that nodes go on without it, None: for ever. detached: whether
    that is no one's terminal. stopper: who stops the run on the hosts `stopping`, which did not answer."""

    leader: Who | None
    since: float
    leads: bool
    lease: float | None
    detached: bool
    stopper: Who | None
    stopping: list[str]


def state_of(folder: Path) -> State:
    """Empty where the file is not there, or does not hold what it must."""
    try:
        return decode(State, own.read_json(folder / STATE, MOST_BYTES))
    except (OSError, ValueError):
        return State()


def alive(who: Who | None) -> bool | None:
    """Whether that process lives; None: it is of another machine, so that is not known here."""
    me = myself()
    if who is None:
        return False
    if (who["machine"], who["space"]) != (me["machine"], me["space"]):
        return None
    return who["boot"] == boot_id() and start_time(who["pid"]) == who["start"]


def holder(folder: Path) -> Who | None:
    """Who writes to a run's folder on a file system without locks; None where that cannot be read."""
    try:
        return decode(Who, own.read_json(folder / HELD, MOST_BYTES))
    except (OSError, ValueError):
        return None


def written(folder: Path) -> bool:
    """Whether a process writes to a run's folder, whatever for."""
    try:
        with own.open_own(folder / WRITER) as lock:  # to read: the folder may be one that we must not write to
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return os.path.lexists(folder / HELD) and not _is_dead(holder(folder))
    return False


def _is_dead(who: Who | None) -> bool:
    return who is not None and alive(who) is False


def followed(folder: Path) -> bool:
    """Whether a process follows a run; one of another machine does as long as it holds the folder."""
    known = alive(state_of(folder).get("leader"))
    return written(folder) if known is None else known


@dataclass(frozen=True)
class Headless:
    """A run of this machine that nobody leads any more, though it is not known to be over. since: the last sign of life
    of who led it, in seconds since the epoch. lease: seconds that its nodes then go on; None: for ever."""

    path: Path
    since: float
    lease: float | None

    def told(self) -> Notice:
        """Returns what is said of it, and the command that leads it again."""
        run = self.path.name
        about = {"run": run, "alone": seconds(round(time.time() - self.since))}
        if self.lease is None:
            text = "run {run} has been unattended for {alone}: it goes on, and no process of this machine leads it"
            return Notice("warning", Reason(text, **about), None, f"fleet attach --detach {run}")
        text = "run {run} has been without its head for {alone}; if it goes on, its nodes end it after {lease}"
        return Notice("warning", Reason(text, **about, lease=seconds(self.lease)), None, f"fleet attach {run}")


def headless(runs_dir: Path) -> Iterator[Headless]:
    """Those that may be live: none whose lease is over. UsageError where runs_dir may be anybody's."""
    if not own.own_folder(runs_dir, OPTION):
        return
    for entry in os.scandir(runs_dir):
        if is_run_id(entry.name) and entry.is_dir(follow_symlinks=False):
            found = without_head(Path(entry.path))
            if found is not None and (found.lease is None or time.time() < found.since + found.lease):
                yield found


def without_head(folder: Path) -> Headless | None:
    state = state_of(folder)
    if not state.get("leads") or alive(state.get("leader")) is not False:
        return None
    with suppress(OSError):  # pruned meanwhile
        return Headless(folder, os.stat(folder / STATE).st_mtime, state.get("lease", 0.0))
    return None
