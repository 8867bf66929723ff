"""Reads runs/RUN/state.json, where a process of this machine notes what it does with a run. It imports little, as verbs
look there that have nothing to do with runs."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleet import own
from fleet.errors import Reason
from fleet.events import Notice
from fleet.node.base.locks import try_lock
from fleet.node.base.processes import lives
from fleet.ops.run.kept.documents import read_object
from fleet.protocol.state import STATE, WRITER, is_run_id
from fleet.rules.units import seconds

OPTION, STOPPER = "--runs-dir", "stopper-"
LONGEST_LEASE = 1e12  # in seconds; a file with another one was not written by fleet


def state_of(folder: Path) -> dict[str, Any]:
    """Returns what the file holds, {} where it is not there, or damaged. A process in it is as processes.myself() has
    it:

    leader: who follows the run, None: nobody any more. since: when it began to. leads: whether the run is its to lead,
    and is not known to be over. lease: seconds that nodes go on without it, None: for ever. detached: whether that is
    no one's terminal. stopper-MACHINE-THREAD: who stops the run on `hosts`, which did not answer.
    """
    return read_object(folder / STATE)


def written(folder: Path) -> bool:
    """Returns whether a process writes to a run's folder, whatever for."""
    try:
        with own.open_own(folder / WRITER) as lock:  # to read: the folder may be one that we must not write to
            return not try_lock(lock.fileno(), fcntl.LOCK_SH, fcntl.flock)
    except OSError:
        return False


def followed(folder: Path) -> bool:
    """Returns whether a process follows a run; one of another machine does as long as it holds the folder."""
    known = lives(state_of(folder).get("leader"))
    return written(folder) if known is None else known


def stopping(folder: Path) -> list[str]:
    """Returns the hosts on which a process still stops a run; one of another machine does as far as is known here."""
    of = (who.get("hosts") for who in stoppers(state_of(folder)) if lives(who) is not False)
    return sorted({str(host) for hosts in of if isinstance(hosts, list) for host in hosts})


def stoppers(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the processes that stop a run on some hosts, each with these."""
    return [who for name, who in state.items() if name.startswith(STOPPER) and isinstance(who, Mapping)]


def without_head(folder: Path) -> tuple[float, float | None] | None:
    """Returns (the last sign of life of who led it, in seconds since the epoch, its lease) of a run that nobody of this
    machine leads any more, and that may go on; None of others: those that are over, and those whose lease is."""
    state = state_of(folder)
    with suppress(OSError):  # pruned meanwhile
        if state.get("leads") and lives(state.get("leader")) is False:
            since, lease = os.stat(folder / STATE).st_mtime, state.get("lease")
            if not isinstance(lease, int | float) or not abs(lease) < LONGEST_LEASE:
                return since, None
            return (since, lease) if time.time() < since + lease else None
    return None


def _folders(runs_dir: Path) -> Iterator[Path]:
    for entry in os.scandir(runs_dir) if own.own_folder(runs_dir, OPTION) else ():
        if is_run_id(entry.name):
            yield Path(entry.path)


def going_on(runs_dir: Path) -> str | None:
    """Returns the run that goes on, the newest of several: a process of this machine leads it, or did and died.
    UsageError where runs_dir may be anybody's."""
    found = dict[str, float]()
    for folder in _folders(runs_dir):
        with suppress(OSError):  # pruned meanwhile
            if state_of(folder).get("leads") and (followed(folder) or without_head(folder)):
                found[folder.name] = os.stat(folder / STATE).st_mtime
    return max(found, key=found.__getitem__, default=None)


def reminders(runs_dir: Path) -> Iterator[Notice]:
    """Yields for each run that goes on without its head a notice with the command that leads it again.
    UsageError where runs_dir may be anybody's."""
    for folder in _folders(runs_dir):
        if (found := without_head(folder)) is None:
            continue
        (since, lease), run = found, folder.name
        about = {"run": run, "alone": seconds(round(time.time() - since))}
        if lease is None:
            text = "run {run} has been unattended for {alone}: it goes on, and no process of this machine leads it"
            yield Notice("warning", Reason(text, **about), None, f"fleet attach --detach {run}")
        else:
            text = "run {run} has been without its head for {alone}; if it goes on, its nodes end it after {lease}"
            yield Notice("warning", Reason(text, **about, lease=seconds(lease)), None, f"fleet attach {run}")
