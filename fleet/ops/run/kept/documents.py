"""Reads the JSON documents in a run's folder on the head. Other programs or users may have damaged them, or put them
there. In state.json, a process of this machine records what it does with a run.

This module imports little, because verbs that have nothing to do with runs use it, too."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fleet import own
from fleet.codec import Misfit, T, from_json
from fleet.errors import Reason
from fleet.events import Notice
from fleet.node.base.locks import try_lock
from fleet.node.base.processes import lives
from fleet.protocol.state import STATE, WRITER, is_run_id
from fleet.rules.units import seconds

if TYPE_CHECKING:
    from typing_extensions import TypeForm

MISSING = "is not there"
SEAL = "seal"
RUN, SUMMARY = "run.json", "summary.json"
OPTION, STOPPER = "--runs-dir", "stopper-"  # STOPPER: the beginning of a name in state.json
SILENT_SECONDS = 45.0  # without a sign of life of a run's coordinator in the folder
LONGEST_LEASE = 1e12  # in seconds; a file with another one was not written by fleet


def read_document(path: Path) -> tuple[dict[str, Any], str | None]:
    """Returns (the JSON object of a file, or {}; the fault of the file as text, or None)."""
    try:
        found = own.read_json(path)
    except FileNotFoundError:
        return {}, MISSING
    except (OSError, ValueError) as error:
        why = os.strerror(errno.EISDIR) if path.is_dir() else str(getattr(error, "strerror", None) or error)
        return {}, f"cannot be read: {why}"
    return (found, None) if isinstance(found, dict) else ({}, "cannot be read: it holds no JSON object")


def read_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object of a file; {} if it is missing, unreadable or holds another value."""
    return read_document(path)[0]


def stored(kind: TypeForm[T], document: object, *names: str) -> T | None:
    """Returns the value at a path of names in a document; None if there is none, or if it has another type. Documents
    may have been edited."""
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    try:
        return from_json(kind, document)
    except Misfit:
        return None


def several(kind: TypeForm[T], document: object, *names: str) -> list[T]:
    """Returns the items of a type in the list at a path of names."""
    items = stored(list[Any], document, *names) or []
    return [found for each in items if (found := stored(kind, each)) is not None]


def whole_lines(file: BinaryIO, longest: int) -> Iterator[bytes]:
    """Yields the lines from a file's position on. Yields a line that is longer than `longest` bytes in pieces. If the
    file ends with half a line, the position stays before it, because the rest may follow."""
    while line := file.readline(longest):
        if not line.endswith(b"\n") and len(line) < longest:
            file.seek(-len(line), os.SEEK_CUR)
            return
        yield line


def documents_of(folder: Path) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """Returns (run.json, summary.json, a text about the first of them that cannot be read or None)."""
    read = {folder / name: read_document(folder / name) for name in (RUN, SUMMARY)}
    plan, summary = (document for document, _ in read.values())
    faults = (f"{path} {wrong}" for path, (_, wrong) in read.items() if wrong not in (None, MISSING))
    return plan, summary, next(faults, None)


def restarts_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the records of the run's restarts in a run.json."""
    return several(dict[str, Any], document, "restarts")


def sealed(document: Mapping[str, Any], run: str) -> dict[str, Any]:
    """Returns a document of a run with the seal by which this user's fleet knows that it wrote it."""
    plain = {name: value for name, value in document.items() if name != SEAL}
    return {**plain, SEAL: own.seal(run, plain)}


def is_sealed(document: Mapping[str, Any], run: str) -> bool:
    """Returns whether this user's fleet wrote this document of that run, and it is unchanged."""
    plain = {name: value for name, value in document.items() if name != SEAL}
    return own.is_seal(document.get(SEAL), run, plain)


# -- state.json --------------------------------------------------------------------------------------------------
class RunState:
    """Holds the values of a run's state.json at one moment; none if it is missing or damaged. It describes a process as
    processes.myself() does. The values:

    leader: the process that follows the run, or None. since: when it began to. leads: it coordinates the run, which is
    not known to be over. lease: seconds that nodes go on without it, None: for ever. detached: it has no terminal.
    stopper-MACHINE-THREAD: the process that stops the run on `hosts`, which did not answer."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.values = folder, read_object(folder / STATE)
        self.leader: Any = self.values.get("leader")
        self.leader_lives = lives(self.leader)  # None: not known, as it is on another machine

    @property
    def followed(self) -> bool:
        """Returns whether a process follows the run. A process of another machine follows it if it holds the folder's
        lock."""
        return written(self._folder) if self.leader_lives is None else self.leader_lives

    @property
    def stopping(self) -> list[str]:
        """Returns the hosts on which a process still stops the run. A process of another machine is assumed to be
        alive."""
        of = (who.get("hosts") for who in stoppers(self.values) if lives(who) is not False)
        return sorted({str(host) for hosts in of if isinstance(hosts, list) for host in hosts})

    @property
    def without_head(self) -> tuple[float, float | None] | None:
        """Returns (last, lease) if no process of this machine coordinates the run any more, and it may still go on.
        last: the last sign of life of its coordinator, in seconds since the epoch. Returns None if the run or its lease
        is over."""
        if not self.values.get("leads") or self.leader_lives is not False or (since := self.signed) is None:
            return None
        lease = self.values.get("lease")
        if not isinstance(lease, int | float) or not abs(lease) < LONGEST_LEASE:
            return since, None
        return (since, lease) if time.time() < since + lease else None

    @property
    def signed(self) -> float | None:
        """Returns the time of its coordinator's last sign of life; None if the run was pruned meanwhile."""
        with suppress(OSError):
            return os.stat(self._folder / STATE).st_mtime
        return None


def stoppers(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the processes that stop a run on some hosts, each with its "hosts"."""
    return [who for name, who in state.items() if name.startswith(STOPPER) and isinstance(who, Mapping)]


def written(folder: Path) -> bool:
    """Returns whether a process holds the lock for writing to a run's folder."""
    try:
        with own.open_own(folder / WRITER) as lock:  # for reading: this user may lack the right to write there
            return not try_lock(lock.fileno(), fcntl.LOCK_SH, fcntl.flock)
    except OSError:
        return False


def _states(runs_dir: Path) -> dict[str, RunState]:
    """Returns the states of all runs, by their ids."""
    folders = os.scandir(runs_dir) if own.own_folder(runs_dir, OPTION) else ()
    return {entry.name: RunState(Path(entry.path)) for entry in folders if is_run_id(entry.name)}


def going_on(runs_dir: Path) -> str | None:
    """Returns the run that goes on, the newest of several, or None. A process of this machine coordinates such a run,
    or did so until it died. Raises UsageError if runs_dir may be another user's."""
    states = {run: state for run, state in _states(runs_dir).items() if state.values.get("leads")}
    found = {run: state.signed for run, state in states.items() if state.followed or state.without_head}
    return max((run for run in found if found[run]), key=lambda run: found[run] or 0.0, default=None)


def reminders(runs_dir: Path) -> Iterator[Notice]:
    """Yields a notice for each run that goes on without its head. Its hint is the command that coordinates the run
    again. Raises UsageError if runs_dir may be another user's."""
    for run, state in _states(runs_dir).items():
        if (found := state.without_head) is None:
            continue
        since, lease = found
        about = {"run": run, "alone": seconds(round(time.time() - since))}
        if lease is None:
            text = "run {run} has been unattended for {alone}: it goes on, and no process of this machine leads it"
            yield Notice("warning", Reason(text, **about), None, f"fleet attach --detach {run}")
        else:
            text = "run {run} has been without its head for {alone}; if it goes on, its nodes end it after {lease}"
            yield Notice("warning", Reason(text, **about, lease=seconds(lease)), None, f"fleet attach {run}")
