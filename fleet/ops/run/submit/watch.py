"""Looks on at a run that its job leads: the wait in the queue, then what the job writes into the run's folder, which a
shared file system shows here. No node is queried, and the queue seldom."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.answers.run_start_events import Submitted, Waiting
from fleet.answers.runs import LeftAlone, RunSummary
from fleet.errors import EXIT_OK, ConnectError, UsageError
from fleet.events import Notice
from fleet.model import Report
from fleet.ops.plans import RequestPlan
from fleet.ops.run.find.attach import report_of
from fleet.ops.run.follow.stopping import LEAVE
from fleet.ops.run.kept.documents import RUN
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.job import SCRIPT, SOON_SECONDS, Asking, ended_in_queue, has_ended, keep_end
from fleet.ops.run.kept.reader import Onlooker, look_until
from fleet.own import read_own
from fleet.protocol.state import STATE
from fleet.requests.runs import Logs
from fleet.runtime import Runtime
from fleet.sources import SOURCES, no_hosts
from fleet.sources.queue import Queue, Standing, State

OUTPUT = "job.out"
BRING_SECONDS = 10.0  # in which a file system shows what was written elsewhere
SILENT_SECONDS = 45.0  # of the process that leads a run, in its folder


@dataclass(frozen=True)
class WatchPlan(RequestPlan[Logs]):
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
    asking, cancels, over, hurried = Asking(queue, (run.job.job, run.path / SCRIPT)), 0, 0.0, None
    signs = Signs(run.path / STATE)

    def end() -> Report | None:
        nonlocal cancels, over, hurried
        if asking.last.state is State.RUNNING and (silent := signs.silent()):
            text = f"the process that leads the run has shown no sign of life for {silent:.0f} s"
            runtime.emit(Notice("warning", text, hint=f"does its node live? scontrol show job {run.job.job}"))
        known = report_of(RunFolder(run.path))
        if known is not None and (has_ended(run.path) or asking.last.state is State.OVER):
            return known
        if known is not None and (last := known.read(RunSummary).end) != hurried:
            hurried = last  # of an attempt: a job that was put back into the queue goes on
            asking.hurry()
        if (standing := asking.look()) is not None:
            _report(standing, run, runtime)
        if asking.last.state is State.OVER:
            over = over or time.monotonic()
            if time.monotonic() > over + (BRING_SECONDS if (run.path / RUN).exists() or not cancels else 0.0):
                return _ended(run, asking.last, queue, runtime)
        if runtime.detach.is_set() or runtime.cancel.count >= LEAVE or (runtime.cancel.is_set() and not run.begun):
            return Report("launch", (), EXIT_OK, answer=LeftAlone(run.request.run, 0, str(run.path), led=run.begun))
        if runtime.cancel.count > cancels:
            cancels = runtime.cancel.count
            _end(run, asking, queue, runtime)
        return None

    return look_until(end, Onlooker(run.path, run.request, runtime.emit).look, runtime.detach)


class Signs:
    """Watches for signs of life of the process that leads a run: it touches a file every few seconds."""

    def __init__(self, file: Path) -> None:
        self.file, self.last, self.at, self.reported = file, 0.0, time.monotonic(), False

    def silent(self) -> float:
        """Returns for how long none has come, once it is too long; 0.0 else."""
        with suppress(OSError):
            if (stamp := self.file.stat().st_mtime) != self.last:
                self.last, self.at, self.reported = stamp, time.monotonic(), False
            elif not self.reported and time.monotonic() > self.at + SILENT_SECONDS:
                self.reported = True
                return SILENT_SECONDS
        return 0.0


def _report(standing: Standing, run: WatchPlan, runtime: Runtime) -> None:
    if standing.state is State.WAITING:
        began = standing.begins
        at = time.strftime(", expected to begin at %d %b %H:%M", time.localtime(began)) if began else ""
        event = Waiting(job=run.job.job, state=standing.name, reason=standing.reason, begins=standing.begins)
        text = f"job {run.job.job} waits: {standing.waits}{at}; Ctrl-C cancels it, d leaves it in the queue"
        runtime.emit(Notice("info", text, happened=(event,)))


def _end(run: WatchPlan, asking: Asking, queue: Queue, runtime: Runtime) -> None:
    """Requests the run's end, as Ctrl-C does: what comes of it, the queue shows."""
    began = (run.path / RUN).exists()
    try:
        if not began:
            queue.cancel(run.job.job, run.path / SCRIPT)
        else:
            queue.interrupt(run.job.job, run.path / SCRIPT)
    except (UsageError, ConnectError) as error:
        runtime.emit(Notice("warning", error.message, hint=error.hint))
    asking.hurry(0.0 if not began else SOON_SECONDS)


def _ended(run: WatchPlan, standing: Standing, queue: Queue, runtime: Runtime) -> Report:
    """Returns the report of a run that has no end on record, but in the queue, and puts that on record:
    the one that is there then is the run's."""
    more, output = "", queue.output(run.job.job, run.path / SCRIPT) or run.path / OUTPUT
    with suppress(OSError):
        lines = [line for line in read_own(output).decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")] or lines
        more = f"; {output}: {errors[-1]}" if lines else ""
    report = ended_in_queue(run.path, run.job.job, standing, more)
    if report.ok:
        text = f"{queue.what}: job {run.job.job} ended well; {run.path} shows nothing of its run"
        runtime.emit(Notice("warning", text, hint="is that folder on a file system that the nodes share?"))
    keep_end(run.path, report)
    return report_of(RunFolder(run.path)) or report
