"""Finds the batch job of a run by the first events in the run's folder. Queries the queue for the job's state."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile

from fleet import own
from fleet.answers.run_events import RunOver
from fleet.answers.run_start_events import Submitted
from fleet.answers.runs import RunSummary
from fleet.best_effort import best_effort
from fleet.errors import EXIT_INTERRUPTED, EXIT_OK, ConnectError, FleetError, HostFailed, UsageError
from fleet.model import Report
from fleet.node.base.locks import HELD
from fleet.node.base.record import whoami
from fleet.node.gang.ends import run_end
from fleet.ops.run.kept.documents import RUN, SILENT_SECONDS, SUMMARY, RunState, read_object, stored
from fleet.ops.run.kept.folder import HANDOVER_SECONDS, RunFolder
from fleet.ops.run.kept.local import LocalRun, names, run_named
from fleet.ops.run.kept.reader import events_of
from fleet.protocol.state import WRITER
from fleet.sources import SOURCES
from fleet.sources.queue import Job, Queue, Standing, State

SCRIPT, HAS_ENDED = "job.sh", "has-ended"  # HAS_ENDED: the kind of the error if the run of a job has ended already
NUMBER = re.compile(r"[0-9]{1,18}(_[0-9]{1,9})?(@[\w.-]{1,64})?", re.ASCII)  # JOB, JOB_TASK of an array; @CLUSTER
SOON_SECONDS = 3.0  # by then a job has started, or the queue knows why it waits
BACK_OFF = 1.3  # factor by which the pause between two queries grows
FOR_GOOD = "done", "stop"  # Verdict.by of a run that no queue begins again. A signal may be a node's reboot


def job_of(argument: str, runs_dir: Path) -> tuple[str, Submitted] | None:
    """Returns (run id, job) of the run that an argument of the command line names. Returns None if it names no run
    here, or if no queue has the run's job."""
    run_id = run_here(argument, runs_dir)
    job = None if run_id is None else submitted(runs_dir / run_id) or found_later(runs_dir / run_id)
    return None if run_id is None or job is None else (run_id, job)


def run_here(argument: str, runs_dir: Path) -> str | None:
    """Returns the run that an argument names (id, prefix, name, latest), of the runs with a folder in runs_dir; None if
    it names none."""
    return run_named(argument, names(runs_dir))


def submitted(folder: Path) -> Submitted | None:
    """Returns the record of the job that was submitted for a run, None if there is none."""
    jobs = [it for it in _requests(folder) if isinstance(it.job, str) and NUMBER.fullmatch(it.job)]
    return max(jobs, key=lambda it: it.seal is not None, default=None)  # a record by the job itself has no seal


def _requests(folder: Path) -> list[Submitted]:
    """Returns the events about the submission of a run; [] if the folder is missing, or another user's."""
    unread = not folder.is_dir() or own.foreign(folder) is not None  # no folder here: this node does not share it
    return [] if unread else list(events_of(folder, Submitted))


def found_later(folder: Path) -> Submitted | None:
    """Records and returns the job of a run whose submission the queue had not confirmed. Returns None if the queue has
    no such job. Raises ConnectError if the queue does not answer."""
    requested = next((it for it in _requests(folder) if it.job == ""), None)
    number = SOURCES.get(requested.on).queue().find(folder / SCRIPT) if requested is not None else None
    return _record(folder, replace(requested, job=number)) if requested is not None and number is not None else None


def _record(folder: Path, job: Submitted) -> Submitted:
    RunFolder(folder).event(job)
    return job


def is_for(job: str, on: str, folder: Path) -> bool:
    """Returns whether a job is the one that was submitted for a run. The job itself calls this function, which records
    the job if the command that submitted it could not."""
    known = submitted(folder)
    if known is None and (folder / SCRIPT).exists():
        unsealed = Submitted(on=on, job="", by=whoami(), script=str(folder / SCRIPT), logs=str(folder))
        known = _record(folder, replace(next(iter(_requests(folder)), unsealed), job=job))
    return known is None or known.job.partition("@")[0] == job


def is_ours(folder: Path) -> bool:
    """Returns whether this user's fleet made a run's folder. Its seal shows that, unless hosts have different home
    folders. Then the queue may show that a job of this user runs the script in the folder."""
    if RunFolder(folder).is_ours:
        return True
    try:
        job = submitted(folder)
        return job is not None and SOURCES.get(job.on).queue().check(job.job, folder / SCRIPT) is None
    except (UsageError, ConnectError):
        return False


def has_ended(folder: Path) -> bool:
    """Returns whether the run itself recorded its end. A record of how its job ended in the queue does not count."""
    summary = read_object(folder / SUMMARY)
    return "exit_code" in summary and ("error" in summary or stored(str, summary, "end", "by") != "queue")


def code_of(folder: Path) -> int | None:
    """Returns the exit code of a run that has ended; None if it has not."""
    return stored(int, read_object(folder / SUMMARY), "exit_code") if has_ended(folder) else None


def is_final(folder: Path) -> bool:
    """Returns whether a run has ended for good: it ended well, or its user ended it. If a rank ended by itself with
    130, the run failed."""
    return has_ended(folder) and stored(str, read_object(folder / SUMMARY), "end", "by") in FOR_GOOD


@dataclass
class Asking:
    """Queries the queue for a job's state, no more often than the site allows. last: the last known state. due: the
    time of the next query, by time.monotonic(). pause: seconds between two queries. doubted: the last answer lacked the
    job."""

    queue: Queue
    job: Job
    last: Standing = Standing(State.WAITING, "PENDING")
    due: float = field(default_factory=lambda: time.monotonic() + SOON_SECONDS)
    pause: float = 0.0
    doubted: bool = False

    def look(self) -> Standing | None:
        """Returns the job's state if a query shows that it has changed. Otherwise, or if no query is due, returns
        None."""
        if time.monotonic() < self.due:
            return None
        least, most = self.queue.poll
        self.pause = min(most, max(least, self.pause * BACK_OFF))
        before, found = self.last, self.queue.look([self.job])[self.job]
        self.due = time.monotonic() + self.pause
        self.doubted, doubted = found.state is State.OVER and not found.name, self.doubted
        if self.doubted and not doubted:  # one answer without the job does not count as its end: query again
            self.hurry()
            return None
        if found.state is not State.UNKNOWN:
            self.last = found
        return found if found != before and found.state is not State.UNKNOWN else None

    def hurry(self, seconds: float = SOON_SECONDS) -> None:
        """Moves the next query forward: it is due after `seconds` at the latest."""
        self.due = min(self.due, time.monotonic() + seconds)


def with_jobs(runs: Sequence[LocalRun]) -> list[LocalRun]:
    """Returns the runs. A run that is open by its folder gets the state of its job. One query serves all jobs of a
    queue."""
    of_source = defaultdict[str, dict[str, Job]](dict)
    for run in runs:
        if run.state == "open" and (job := submitted(Path(run.logs))) is not None:
            of_source[job.on][run.run] = job.job, Path(run.logs) / SCRIPT
    found = dict[str, Standing]()
    for on, jobs in of_source.items():
        standings = SOURCES.get(on).queue().look(list(jobs.values()))
        found |= {name: standings[it] for name, it in jobs.items()}
    return [_standing(run, found[run.run]) if run.run in found else run for run in runs]


def _standing(run: LocalRun, standing: Standing) -> LocalRun:
    """Returns a run with the state of its job."""
    if standing.state is not State.OVER:
        return replace(run, state={State.WAITING: "queued", State.RUNNING: "followed"}.get(standing.state, run.state))
    state = "done" if standing.code == EXIT_OK else "stopped" if standing.code == EXIT_INTERRUPTED else "failed"
    return replace(run, state=state if standing.name else "unknown", exit_code=standing.code)


def ended_in_queue(folder: Path, job: str, standing: Standing, more: str = "") -> Report:
    """Returns the report of a run whose job is over, and which has recorded no end itself. more: text from the job's
    output."""
    code, name = standing.code, standing.name
    reason = f" ({standing.reason})" if standing.reason not in ("", "None", name) else ""
    text, error = f"job {job} ended before the run could: {name}{reason}{more}", None
    if not name:
        text = f"job {job} is over, and its queue does not know any more how it ended{more}"
    elif code == EXIT_OK:
        text = f"job {job} ended well ({name}), and its folder does not show the run"
    elif name == "CANCELLED":
        text = f"job {job} was cancelled{'' if (folder / RUN).exists() else ' before a rank ran'}"
    if code != EXIT_OK:
        fault = HostFailed(text, hint=f"fleet logs {folder.name}", kind="ended" if name else "unknown")
        error = {**fault.as_json(), "message": str(fault)}
    by = "done" if code == EXIT_OK else "stop" if name == "CANCELLED" else "queue"
    end = run_end(by, text, code) if name else None
    answer = RunSummary(folder.name, logs=str(folder), stopped=text if code != EXIT_OK else None, end=end, error=error)
    return Report("launch", (), code, answer=answer)


def keep_end(path: Path, report: Report) -> None:
    """Records the end that a queue reports for a run that has recorded none. Records nothing if the queue does not know
    how the job ended. Raises ConnectError if a process still leads the run: a slurmctld that was restarted may have
    forgotten that the job began. A held lock counts only with a sign of life, because an NFS server keeps the lock of a
    node that crashed."""
    # the lock is read before the summary, because the leader writes the summary before it releases the lock. On a file
    # system without locks, it is not known whether a process of another machine lives
    state = RunState(path)  # reading state.json makes NFS show the present time of its last change, too
    signs = time.time() - (state.signed or 0.0) < SILENT_SECONDS
    is_open = state.followed and signs and "exit_code" not in read_object(path / SUMMARY)
    if is_open and not (path / f"{WRITER}{HELD}").exists():
        text = f"run {path.name} goes on, though its job is over for its queue: a process still leads it"
        raise ConnectError(text, hint="'fleet runs' shows when it has ended", kind="unknown")
    if report.read(RunSummary).end is not None:
        _keep(path, report, 0.0, lambda: "exit_code" in read_object(path / SUMMARY))


def keep_refusal(path: Path, report: Report) -> None:
    """Records that a job could not start its run. Replaces the end that a queue reported for an earlier attempt."""
    _keep(path, report, HANDOVER_SECONDS, lambda: has_ended(path))


def _keep(path: Path, report: Report, seconds: float, is_kept: Callable[[], bool]) -> None:
    folder = RunFolder(path)
    with best_effort("record the end of the run", (OSError, FleetError)):
        with TemporaryFile(dir=path):
            os.listdir(path)  # after this host has made a file on NFS, it sees the files that other hosts made
        if folder.hold(seconds) and not is_kept():
            folder.event(RunOver(exit_code=report.exit_code, first_failure=None))
            folder.write_json(SUMMARY, report.as_json())
    folder.release()
