"""`fleet attach RUN`: follows a run that was detached, that lost its head, or that another head started."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any

from fleet.errors import UsageError
from fleet.events import Notice
from fleet.model import Host, Inventory, Report
from fleet.ops.launch.attempts import follow_run
from fleet.ops.launch.kinds import VERSION
from fleet.ops.launch.logs import HANDOVER_SECONDS, RunFolder
from fleet.ops.launch.start import Sessions
from fleet.ops.plans import Line
from fleet.ops.runs.find import FoundRun, chosen, find, missing
from fleet.rules.units import counted
from fleet.runtime import Runtime


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
    record = found.record(plan.runs_dir)
    folder = take(found, plan.runs_dir)
    try:
        size = f"{counted(record.world_size, 'rank')} on {counted(len(record.nodes), 'node')}"
        runtime.emit(
            Notice(
                "info",
                f"run {record.run_id}: {found.state}, {size}, logs in {record.logs}",
                data=folder.event(
                    "attached",
                    version=VERSION,
                    world_size=record.world_size,
                    first_ranks=record.first_ranks,
                    logs=str(record.logs),
                    state=found.state,
                    started=record.started,
                ),
            )
        )
        return follow_run(record, folder, sessions.take_all(found.hosts), runtime)
    finally:
        folder.release()


def take(found: FoundRun, runs_dir: Path) -> RunFolder:
    """The run's folder here, for us to write to: a helper that an earlier command left makes room. UsageError where
    another fleet command follows it."""
    folder = RunFolder.open(runs_dir, found.run_id)
    if folder.held:
        return folder
    who = folder.holder()
    machine = who.get("machine", gethostname())  # a home folder may be several machines'
    if who.get("helper") and machine == gethostname():
        os.kill(int(who["pid"]), signal.SIGTERM)
        if folder.hold(HANDOVER_SECONDS):
            return folder
    raise UsageError(
        f"process {who.get('pid', '?')} of {_shown(machine)} follows {found.run_id} already",
        hint=f"fleet logs -f {found.run_id}",
    )


def _shown(machine: str) -> str:
    return "this machine" if machine == gethostname() else str(machine)
