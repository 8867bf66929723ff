"""Watches a run that its job coordinates: its wait in the queue, then the output of the job in the run's folder on a
shared file system. Queries no node, and the queue rarely."""

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
from fleet.ops.run.kept.documents import RUN, SILENT_SECONDS
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
BRING_SECONDS = 10.0  # a shared file system shows a file of another machine within this time


@dataclass(frozen=True)
class WatchPlan(RequestPlan[Logs]):
    """Holds the plan. detach: the command ends at once, and the run goes on. begun: this command has submitted the run;
    it shows all output, and Ctrl-C ends the run. Without `begun` it shows output from now on, and Ctrl-C ends only the
    command."""

    job: Submitted
    detach: bool
    begun: bool

    @property
    def path(self) -> Path:
        return self.request.runs / self.request.run


def watch_of(runs_dir: Path, run: str, job: Submitted, *, detach: bool, begun: bool = False) -> WatchPlan:
    """Returns the plan. detach, begun: see WatchPlan."""
    shown = {"run": run, "logs": str(runs_dir / run), "job": job.job}
    text = f"follows run {run}, job {job.job}, to its end"
    logs = Logs(run, runs_dir=runs_dir, tail=None if begun else 0)
    return WatchPlan(no_hosts(job.on), logs, shown, text, job, detach, begun)


def watch(run: WatchPlan, runtime: Runtime) -> Report:
    """Watches the run until its job has recorded the end, or the queue reports it. Returns the report of the end, or
    LeftAlone if the run goes on without this process."""
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
            hurried = last  # the run is not over if its job was put back into the queue
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
    """Watches for signs of life of a run's coordinator, which touches a file every few seconds."""

    def __init__(self, file: Path) -> None:
        self.file, self.last, self.at, self.reported = file, 0.0, time.monotonic(), False

    def silent(self) -> float:
        """Returns SILENT_SECONDS, once, if there was no sign of life for longer than that. Otherwise returns 0.0."""
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
    """Requests the end of the run, for Ctrl-C. The queue shows the result later."""
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
    """Records the end of a run by the state of its job, because the run itself recorded none. Returns the recorded
    report. That is the job's own, if the job has just written one."""
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
