"""The job of a run that a batch system starts: as the first events of its folder have it."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet import own
from fleet.answers.run_events import Submitted
from fleet.errors import EXIT_INTERRUPTED, UsageError
from fleet.ops.run.kept.documents import read_object
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.local import LocalRun, names
from fleet.ops.run.kept.reader import events_of
from fleet.ops.run.kept.word import meant
from fleet.sources import SOURCES
from fleet.sources.queue import Queue, Standing, State

SCRIPT = "job.sh"
NUMBER = re.compile("[0-9]{1,18}(_[0-9]{1,9})?")  # of a job, or of a task of an array
SOON_SECONDS = 3.0  # after which a job that starts at once has started, and the queue knows why another waits
BACK_OFF = 1.3


def job_of(word: str, runs_dir: Path) -> tuple[str, Submitted] | None:
    """(the run that an argument means, its job); None where there is none here, or no queue has it."""
    run_id = run_here(word, runs_dir)
    job = None if run_id is None else submitted(runs_dir / run_id)
    return None if run_id is None or job is None else (run_id, job)


def run_here(word: str, runs_dir: Path) -> str | None:
    """Returns the run that an argument means, of those that have a folder here."""
    return meant(word, names(runs_dir))


def submitted(folder: Path) -> Submitted | None:
    """Returns the job that a queue was given for a run."""
    if own.foreign(folder) is not None:
        return None
    found = next(events_of(folder, Submitted), None)
    return found if found is not None and isinstance(found.job, str) and NUMBER.fullmatch(found.job) else None


def is_ours(folder: Path) -> bool:
    """Returns whether this user's fleet made a run's folder, or, where homes differ, the queue shows that this user's
    job runs the script in it."""
    if RunFolder(folder).is_ours:
        return True
    try:
        job = submitted(folder)
        return job is not None and SOURCES.get(job.on).queue().check(job.job, folder / SCRIPT) is None
    except UsageError:
        return False


def has_ended(folder: Path) -> bool:
    """Is true where the end on record is its run's, whatever the queue does with its job."""
    summary = read_object(folder / "summary.json")
    end = summary.get("end")
    return "exit_code" in summary and not (isinstance(end, dict) and end.get("by") == "queue")


@dataclass
class Asking:
    """The queue, queried no more often than a site bears. last: what it answered."""

    queue: Queue
    job: str
    last: Standing = Standing(State.WAITING, "PENDING")
    due: float = field(default_factory=lambda: time.monotonic() + SOON_SECONDS)
    pause: float = 0.0

    def look(self) -> Standing | None:
        """Returns what is new; None: nothing, or it is not time yet."""
        if time.monotonic() < self.due:
            return None
        least, most = self.queue.poll
        self.pause = min(most, max(least, self.pause * BACK_OFF))
        before, found = self.last, self.queue.look([self.job])[self.job]
        self.due = time.monotonic() + self.pause
        if found.state is not State.UNKNOWN:
            self.last = found
        return found if found != before and found.state is not State.UNKNOWN else None

    def hurry(self) -> None:
        """Makes the next request soon, as its answer is known to be new."""
        self.due = min(self.due, time.monotonic() + SOON_SECONDS)


def with_jobs(runs: Sequence[LocalRun]) -> list[LocalRun]:
    """The same, where the queue knows more of them than their folders: one query is for all."""
    jobs = {run.run: job for run in runs if run.state == "open" and (job := submitted(Path(run.logs))) is not None}
    of_source = defaultdict[str, list[str]](list)
    for job in jobs.values():
        of_source[job.on].append(job.job)
    found = {
        (on, job): it for on, those in of_source.items() for job, it in SOURCES.get(on).queue().look(those).items()
    }
    return [_standing(run, found[jobs[run.run].on, jobs[run.run].job]) if run.run in jobs else run for run in runs]


def _standing(run: LocalRun, standing: Standing) -> LocalRun:
    if standing.state is State.OVER and standing.name:
        return replace(run, state="stopped" if standing.code == EXIT_INTERRUPTED else "failed", exit_code=standing.code)
    return replace(run, state={State.WAITING: "queued", State.RUNNING: "followed"}.get(standing.state, run.state))
