"""`fleet attach RUN`: follows a run that was detached, that lost its head, or that another head started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any

from fleet.errors import UsageError
from fleet.events import Notice
from fleet.model import Host, Inventory, Report
from fleet.ops.launch.attempts import follow_run, pause_before
from fleet.ops.launch.folder import HANDOVER_SECONDS, RunFolder
from fleet.ops.launch.kinds import VERSION
from fleet.ops.launch.record import RunRecord
from fleet.ops.launch.start import Sessions
from fleet.ops.launch.summary import left_alone
from fleet.ops.plans import Line
from fleet.ops.runs.find import FoundRun, chosen, find, missing
from fleet.ops.runs.logs import LogsPlan, is_whole
from fleet.ops.runs.watch import report_of, watch
from fleet.rules.units import counted
from fleet.runtime import Runtime

MARGIN_SECONDS = 10.0  # in which another head starts a run again, once it has waited
ASK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class AttachPlan:
    """word: what names the run."""

    inventory: Inventory
    word: str
    runs_dir: Path

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.inventory.hosts

    def describe(self) -> dict[str, Any]:
        return {"run": self.word, "logs": str(self.runs_dir)}

    def lines(self) -> Iterator[Line]:
        yield f"follows run {self.word} to its end"


def run(plan: AttachPlan, runtime: Runtime) -> Report:
    """The run's own end, as launch reports it. With runtime.detach set it goes on without this process."""
    with closing(Sessions(runtime)) as sessions:
        return _follow(plan, runtime, sessions)


def _follow(plan: AttachPlan, runtime: Runtime, sessions: Sessions) -> Report:
    runs, asked = find(plan.inventory, runtime, live=False, sessions=sessions)
    found = chosen(plan.word, runs, asked)
    if (lacks := missing(found, asked)) is not None:
        runtime.emit(Notice("warning", lacks))
    folder = RunFolder.open(plan.runs_dir, found.run_id)
    if not folder.held and folder.holder().get("restarts") and _machine(folder) == gethostname():
        # it knows how to start the run again, and we do not
        record = found.record(plan.runs_dir)
        runtime.emit(_attached(found, record, {}))
        report = watch(LogsPlan(plan.inventory, found.run_id, plan.runs_dir, tail=0), folder, runtime)
        if report is not None or not folder.held:
            folder.release()
            return report or left_alone(record)
    folder = folder if folder.held else take(found, plan.runs_dir)
    try:
        if found.record(plan.runs_dir).restartable and not found.live and is_whole(folder.path / "summary.json"):
            # the nodes know of the last attempt only, and not that it was stopped before the next
            return report_of(folder) or left_alone(found.record(plan.runs_dir))
        while True:
            record = found.record(plan.runs_dir)
            folder.begin(record.attempt)
            runtime.emit(_attached(found, record, folder.event("attached", **_told(found, record))))
            report = follow_run(record, folder, sessions.take_all(found.hosts), runtime)
            later = None if report.data.get("detached") else _another(report, record, plan, runtime)
            if later is None:
                return report
            found = later
    finally:
        folder.release()


def _told(found: FoundRun, record: RunRecord) -> dict[str, Any]:
    return {
        "version": VERSION,
        "world_size": record.world_size,
        "first_ranks": record.first_ranks,
        "logs": str(record.logs),
        "state": found.state,
        "started": record.started,
    }


def _attached(found: FoundRun, record: RunRecord, event: dict[str, Any]) -> Notice:
    size = f"{counted(record.world_size, 'rank')} on {counted(len(record.nodes), 'node')}"
    which = f", attempt {record.attempt}" * (record.attempt > 0)
    text = f"run {record.run_id}: {found.state}{which}, {size}, logs in {record.logs}"
    return Notice("info", text, data=event or {"event": "attached", "time": time.time(), **_told(found, record)})


def _another(report: Report, record: RunRecord, plan: AttachPlan, runtime: Runtime) -> FoundRun | None:
    """The attempt that another process begins after one that failed; None where none does."""
    if not record.restartable or report.data["first_failure"] is None:
        return None
    seconds = pause_before(record.attempt + 1) + MARGIN_SECONDS
    runtime.emit(Notice("warning", f"it may be started again by {record.owner}: that is waited for {seconds:g} s"))
    until = time.monotonic() + seconds
    while time.monotonic() < until and not runtime.cancel.is_set() and not runtime.detach.wait(ASK_AGAIN_SECONDS):
        runs, _ = find(plan.inventory, runtime, live=True)
        for run in runs:
            if run.run_id == record.run_id and run.record(plan.runs_dir).attempt > record.attempt:
                return run
    text = "nothing starts it again: what launched it does not follow it any more"
    runtime.emit(Notice("warning", text))
    return None


def take(found: FoundRun, runs_dir: Path) -> RunFolder:
    """The run's folder here, for us to write to: a helper that an earlier command left makes room. UsageError where
    another fleet command follows it."""
    folder = RunFolder.open(runs_dir, found.run_id)
    if folder.held:
        return folder
    who = folder.holder()
    machine = _machine(folder)
    if who.get("helper") and machine == gethostname():
        os.kill(int(who["pid"]), signal.SIGTERM)
        if folder.hold(HANDOVER_SECONDS):
            return folder
    raise UsageError(
        f"process {who.get('pid', '?')} of {_shown(machine)} follows {found.run_id} already",
        hint=f"fleet logs -f {found.run_id}",
    )


def _machine(folder: RunFolder) -> str:
    """Whose process holds it: a home folder may be several machines'."""
    return str(folder.holder().get("machine", gethostname()))


def _shown(machine: str) -> str:
    return "this machine" if machine == gethostname() else machine
