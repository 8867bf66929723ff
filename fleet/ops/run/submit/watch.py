"""Looks on at a run that its job leads: the wait in the queue, then what the job writes into the run's folder, which a
shared file system shows here. No node is queried, and the queue seldom."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.answers.run_events import Submitted, Waiting
from fleet.answers.runs import LeftAlone, RunSummary
from fleet.errors import EXIT_INTERRUPTED, EXIT_OK, HostFailed
from fleet.events import Notice
from fleet.model import Report
from fleet.ops.plans import Asked
from fleet.ops.run.find.attach import report_of
from fleet.ops.run.follow.fetch import POLL_SECONDS
from fleet.ops.run.kept.documents import RUN
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.job import SCRIPT, Asking, has_ended
from fleet.ops.run.kept.reader import LogsPlan, Onlooker
from fleet.own import read_own
from fleet.requests.runs import Logs
from fleet.runtime import Runtime
from fleet.sources import SOURCES, no_hosts
from fleet.sources.queue import Queue, Standing, State

OUTPUT = "job.out"
BRING_SECONDS = 10.0  # in which a file system shows what was written elsewhere
LEAVE, AT_ONCE = 3, 2


@dataclass(frozen=True)
class WatchPlan(Asked[Logs]):
    """To look on at a run of a job. begun: by the command that looks on: it shows all of it, and Ctrl-C ends the run,
    which it else leaves alone."""

    job: Submitted
    detach: bool
    begun: bool

    @property
    def path(self) -> Path:
        return self.request.runs / self.request.run


def watch_of(runs_dir: Path, run: str, job: Submitted, *, detach: bool, begun: bool = False) -> WatchPlan:
    """Returns the plan. The other parameters: its fields."""
    shown = {"run": run, "logs": str(runs_dir / run), "job": job.job}
    text = f"follows run {run}, job {job.job}, to its end"
    logs = Logs(run, runs_dir=runs_dir, tail=None if begun else 0)
    return WatchPlan(no_hosts(job.on), logs, shown, text, job, detach, begun)


def watch(run: WatchPlan, runtime: Runtime) -> Report:
    """Until it is over, as its job has it on record, or the queue."""
    if run.detach:
        runtime.detach.set()
    queue = SOURCES.get(run.job.on).queue()
    asking, cancels, over = Asking(queue, run.job.job), 0, 0.0
    onlooker = Onlooker(run.path, LogsPlan(run.inventory, run.request), runtime.emit)
    while True:
        onlooker.look()
        report = report_of(RunFolder(run.path))
        if report is not None and not _begins_again(run, asking):
            return report
        if (standing := asking.look()) is not None:
            _report(standing, run, runtime)
        if asking.last.state is State.OVER:
            over = over or time.monotonic()
            if time.monotonic() > over + BRING_SECONDS:
                return _ended(run, asking.last, queue)
        if runtime.detach.is_set() or runtime.cancel.count >= LEAVE or (runtime.cancel.is_set() and not run.begun):
            return _left(run)
        if runtime.cancel.count > cancels:
            cancels = runtime.cancel.count
            if _end(run, asking, queue, cancels):
                return _ended(run, Standing(State.OVER, "CANCELLED", code=EXIT_INTERRUPTED), queue)
        runtime.detach.wait(POLL_SECONDS)


def _begins_again(run: WatchPlan, asking: Asking) -> bool:
    """Is true for a run whose job was put back into the queue: the end of this attempt is not the run's."""
    if has_ended(run.path) or asking.last.state is State.OVER:
        return False
    asking.hurry()
    return True


def _report(standing: Standing, run: WatchPlan, runtime: Runtime) -> None:
    if standing.state is State.WAITING:
        began = standing.begins
        at = time.strftime(", expected to begin at %d %b %H:%M", time.localtime(began)) if began else ""
        event = Waiting(job=run.job.job, state=standing.name, reason=standing.reason, begins=standing.begins)
        text = f"job {run.job.job} waits: {standing.waits}{at}; Ctrl-C cancels it, d leaves it in the queue"
        runtime.emit(Notice("info", text, happened=(event,)))


def _end(run: WatchPlan, asking: Asking, queue: Queue, cancels: int) -> bool:
    """Ends the run as Ctrl-C does. Returns True where none of it ever ran."""
    began = (run.path / RUN).exists()
    if not began or cancels > AT_ONCE:
        queue.cancel(run.job.job, run.path / SCRIPT)
        return not began
    queue.interrupt(run.job.job, run.path / SCRIPT)
    asking.hurry()
    return False


def _left(run: WatchPlan) -> Report:
    return Report("launch", (), EXIT_OK, answer=LeftAlone(run.request.run, 0, str(run.path), led=run.begun))


def _ended(run: WatchPlan, standing: Standing, queue: Queue) -> Report:
    """Returns the report of a run that has no end on record, but in the queue."""
    name = standing.name or "that it is over"
    text = f"job {run.job.job} ended before the run could: {queue.what} says {name}"
    if standing.reason not in ("", "None", name):
        text += f" ({standing.reason})"
    with suppress(OSError):
        lines = [line for line in read_own(run.path / OUTPUT).decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")] or lines
        text += f"; {run.path / OUTPUT}: {errors[-1]}" if lines else ""
    error = (
        HostFailed(f"job {run.job.job} was cancelled before a rank ran", kind="ended")
        if standing.code == EXIT_INTERRUPTED
        else HostFailed(text, hint=f"fleet logs {run.request.run}", kind="ended")
    )
    why = {**error.as_json(), "message": str(error)}
    answer = RunSummary(run.request.run, logs=str(run.path), stopped=text, error=why)
    return Report("launch", (), standing.code, answer=answer)
