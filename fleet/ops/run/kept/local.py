"""Lists the runs that have a folder on this machine, for `fleet runs`. Finds the run that an argument names, and prunes
old runs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet import own
from fleet.answers.run_start_events import Attached
from fleet.codec import T
from fleet.errors import EXIT_INTERRUPTED, Ambiguous, UsageError
from fleet.inventory.nodeset import fold
from fleet.node.gang.ends import ranks_text
from fleet.ops.run.kept.documents import OPTION, RUN, SUMMARY, RunState, documents_of, read_object, stored
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.reader import NewEvents, events_of
from fleet.protocol.messages.run import Time
from fleet.protocol.state import ATTEMPT, LATEST, is_log, is_run_id, run_name
from fleet.rules.units import few

DAY = 86400.0
# the names of fleet's own files in a run's folder
OF_A_RUN = re.compile(
    r"(?:run|summary|state)\.json(?:\.new)?|events\.jsonl|code\.diff|stacks\.txt|leader\.log|\.attempt|\.made|"
    r"\.lock(?:\.held(?:\.[0-9]+)?)?|job\.(?:sh|env|out)"
)
ASIDE = re.compile(rf"{ATTEMPT}[0-9]+")  # the names of folders with the logs of earlier attempts


@dataclass(frozen=True)
class LocalRun:
    """Describes a run. state: "done", "failed", "stopped", or one of the following. "unknown": its end on some hosts is
    not known. "followed": a process here writes to its folder. "unattended": it was detached, and no process here
    coordinates it any more. "queued": its job waits in the queue. "open": it has no summary, and no process here
    follows it. started: seconds since the epoch. size: bytes. exit_code: None while it has no summary. broken: the
    fault of its documents as text, or None. stopping: hosts that did not answer, so that a process still tries to stop
    the run there."""

    run: str
    state: str
    started: float
    size: int
    exit_code: int | None
    engine: str | None
    logs: str
    broken: str | None = None
    stopping: Sequence[str] = ()


def local_runs(runs_dir: Path) -> list[LocalRun]:
    """Returns the runs, newest first."""
    return sorted(_each(runs_dir, read_run), key=lambda run: run.started, reverse=True)


def _each(runs_dir: Path, read: Callable[[Path], T]) -> Iterator[T]:
    """Yields read(folder) for each run, except runs that are pruned meanwhile."""
    for folder in _folders(runs_dir):
        with suppress(FileNotFoundError):
            yield read(folder)


def names(runs_dir: Path) -> list[str]:
    """Returns the ids of the runs: first the one that was launched last, then the others that were launched here,
    newest first. Runs that only have a folder come after these, and runs that never began come last."""
    last = last_begun(runs_dir)

    def placed(folder: Path) -> tuple[bool, bool, bool, float, str]:
        plan = read_object(folder / RUN)
        return (
            # it never began: see summary.not_started()
            "error" in read_object(folder / SUMMARY) and folder.name != last,
            folder.name != last,
            not (folder / RUN).exists(),
            -_started(folder, plan),
            folder.name,
        )

    return [name for *_, name in sorted(_each(runs_dir, placed))]


def last_begun(runs_dir: Path) -> str | None:
    """Returns the run that began last here, or None. The link `latest` decides, not the clock."""
    with suppress(OSError):
        link = runs_dir / LATEST
        if own.is_mine(link.lstat().st_uid, link, runs_dir) and is_run_id(name := os.readlink(link)):
            return name
    return None


# -- the run that an argument means -----------------------------------------------------------------------------
def choose(argument: str, here: Sequence[str], others: Iterable[str] = ()) -> str:
    """Returns the run that an argument names. argument: an id, "latest" (the first of `here`), a name (its newest run),
    or the beginning of one id only. here: runs that have a folder here, as names() returns them. others: runs that
    nodes report, newest first. Raises UsageError if no run, or more than one, matches."""
    run_ids = [*dict.fromkeys((*here, *others))]
    if not argument:  # from an unset variable; as a prefix, it would match every run
        raise UsageError("RUN is empty", hint="'fleet ps --all' lists them; 'latest' is the newest")
    if argument in run_ids:
        return argument
    if argument == LATEST:
        if not here:
            hint = "'fleet ps --all' lists those on the hosts, to be named by their ids"
            raise UsageError("no run latest: none was launched from this folder", hint=hint)
        return here[0]
    named = [run_id for run_id in run_ids if run_name(run_id) == argument]
    if named:
        return named[0]
    begun = [run_id for run_id in run_ids if run_id.startswith(argument)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise Ambiguous(
            f"{argument}: {len(begun)} runs begin so: {few(begun)}", hint="give more of its id, or 'latest'"
        )
    if not run_ids:
        raise UsageError(f"no run {argument}: no run is known", hint="'fleet launch SCRIPT' starts one")
    raise UsageError(f"no run {argument}: known are {few(run_ids)}", hint="'fleet ps --all' lists them")


def run_named(argument: str, here: Sequence[str]) -> str | None:
    """Returns the run as choose() does. Returns None if choose() raises UsageError."""
    try:
        return choose(argument, here)
    except UsageError:
        return None


def no_such_rank(run_id: str, requested: Iterable[int], known: Iterable[int]) -> UsageError:
    """Returns the error that a run lacks ranks that the user named."""
    return UsageError(
        f"run {run_id} has no {ranks_text(sorted(requested))}", hint=f"it has {ranks_text(sorted(known))}"
    )


def is_part_of_name(argument: str, run_id: str) -> bool:
    """Returns whether the argument is only the beginning of the run's name. The user may then mean a file of that
    name."""
    name = run_name(run_id) or run_id
    return name.startswith(argument) and argument != name


def _folders(runs_dir: Path) -> list[Path]:
    """Returns the folders of runs. Raises UsageError if runs_dir may be another user's."""
    return [path for path, why in _looked_at(runs_dir) if why is None]


def passed_over(runs_dir: Path) -> list[str]:
    """Returns a text for each folder that has a run's name and is not read: its path, and why."""
    return [f"{path} {why}, and is passed over" for path, why in _looked_at(runs_dir) if why is not None]


def _looked_at(runs_dir: Path) -> Iterator[tuple[Path, str | None]]:
    """Yields (a folder with a run's name, why fleet does not read it or None)."""
    if own.own_folder(runs_dir, OPTION):
        for path in filter(lambda path: is_run_id(path.name), runs_dir.iterdir()):
            try:
                why = own.foreign(path)
                if why is None:
                    (path / "events.jsonl").lstat()
            except (FileNotFoundError, NotADirectoryError):  # it is no run, or was pruned meanwhile
                continue
            except PermissionError:
                why = "cannot be entered"
            yield path, why


def _started(folder: Path, plan: Mapping[str, Any]) -> float:
    """Returns the time of a run's start, in seconds since the epoch. plan: its run.json."""
    started = stored(Time, plan, "started")
    return (folder / "events.jsonl").stat().st_mtime if started is None else started


def prunable(runs: list[LocalRun], keep: int, days: float, max_size: float | None = None) -> list[LocalRun]:
    """Returns the runs to remove: runs that are over, are not among the newest `keep`, and are older than `days`.
    max_size: returns only the oldest of these, so many that all other runs have at most `max_size` bytes."""
    over = [run for run in runs if run.exit_code is not None and run.state != "followed" and not run.stopping]
    old = [run for run in over[keep:] if time.time() - run.started > days * DAY]
    if max_size is None:
        return old
    beyond = sum(run.size for run in runs) - max_size
    chosen: list[LocalRun] = []
    while beyond > 0 and old:
        chosen.insert(0, old.pop())
        beyond -= chosen[0].size
    return chosen


def prune(run: LocalRun) -> list[str]:
    """Removes fleet's files from a run's folder, then the folder if it is empty. Returns the paths that are left.
    Raises UsageError if a process writes to the folder, or if it cannot be removed."""
    folder = RunFolder(Path(run.logs))
    link = folder.path.with_name(LATEST)
    try:
        if not folder.hold():
            raise UsageError(f"{run.run}: a process follows it just now")
        if hosts := RunState(folder.path).stopping:
            hint = f"fleet forget {run.run}"
            raise UsageError(f"{run.run}: a process still stops it on {fold(hosts)}, and fetches its logs", hint=hint)
        ended = stored(dict[str, Any], read_object(folder.path / SUMMARY), "hosts") or {}
        events = NewEvents(folder.path / "events.jsonl").read()
        named = {*ended, *(str(notice.host) for notice in events)}
        left = clear(folder.path, named)
        if link.is_symlink() and not link.exists():
            link.unlink()
    except OSError as error:
        raise UsageError(f"{error.filename or run.logs}: {error.strerror}") from None
    finally:
        folder.release()
    return [str(path.relative_to(folder.path)) for path in left]


def clear(path: Path, hosts: Collection[str] = (), is_own: Callable[[str], object] = OF_A_RUN.fullmatch) -> list[Path]:
    """Removes fleet's own files and the hosts' folders, then the folder if it is empty. Returns the paths that are
    left. Follows no link. hosts: the names of the hosts' folders. is_own: returns whether a file of that name is
    fleet's."""
    left = list[Path]()
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        folder = entry.is_dir(follow_symlinks=False)
        if folder and is_own is not is_log and (entry.name in hosts or ASIDE.fullmatch(entry.name)):
            left += clear(Path(entry.path), hosts, is_log if entry.name in hosts else OF_A_RUN.fullmatch)
        elif not folder and not entry.is_symlink() and is_own(entry.name):
            os.unlink(entry.path)
        else:
            left.append(Path(entry.path))
    if not left:
        path.rmdir()
    return left


def platform_of(path: Path) -> str | None:
    """Returns the platform that started a run in containers that no head reaches; None if a head started it."""
    return stored(str, read_object(path / RUN), "platform")


def read_run(path: Path) -> LocalRun:
    """Returns the description of the run that has this folder."""
    known = RunState(path)
    is_followed = known.followed  # read before the summary: a leader writes that before it releases the lock
    plan, summary, broken = documents_of(path)
    code = summary.get("exit_code")
    state = (
        "followed"
        if is_followed
        else "unattended"
        if code is None and (alone := known.without_head) is not None and alone[1] is None
        else "open"
        if code is None
        else "stopped"
        if code == EXIT_INTERRUPTED and not summary.get("first_failure")
        else "unknown"
        if summary.get("unknown") and not summary.get("first_failure") and not summary.get("end")
        else "failed"
        if code
        else "done"
    )
    return LocalRun(
        run=path.name,
        state=state,
        started=_started(path, plan),
        size=sum(_size(Path(where, name)) for where, _, names in os.walk(path) for name in names),
        exit_code=code if isinstance(code, int) else None,
        engine=engine
        if (engine := stored(str, plan, "engine")) is not None
        else next(filter(None, (event.engine for event in events_of(path, Attached))), None),
        logs=str(path),
        broken=broken,
        stopping=known.stopping,
    )


def _size(file: Path) -> int:
    """Returns the bytes of a file; 0 if another process has just renamed or removed it."""
    try:
        return file.lstat().st_size
    except FileNotFoundError:
        return 0
