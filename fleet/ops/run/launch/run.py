"""`fleet launch`: plan, preflight, start, follow, and one report of how the run ended."""

from __future__ import annotations

import time
from dataclasses import replace

from fleet import fanout, own
from fleet.answers.run_events import NodeStarted, Planned, Running, Version
from fleet.errors import FleetError
from fleet.events import Event, Notice
from fleet.model import Report
from fleet.ops.run.kept.folder import HANDOVER_SECONDS, OPTION, RunFolder, led_already
from fleet.ops.run.plan.origin import Origin
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.start.spares import preflight_all, record_left_out, with_enough
from fleet.ops.run.start.start import start_all, step
from fleet.ops.run.start.sync import sync_code
from fleet.ops.sessions import Sessions
from fleet.rules.units import counted
from fleet.runtime import Runtime

FDS_PER_HOST = 4  # a connection and, for a moment, the one that replaces it


def run(draft: Plan, runtime: Runtime) -> Report:
    """Do it all. PreflightError, ConnectError: nothing was started anywhere. Otherwise the run's own end.

    runtime.cancel: set once it stops gently, twice it kills, three times it leaves the nodes alone. What runtime.emit
    raises stops it, too, and is raised when nothing runs any more."""
    faults: list[Exception] = []

    def emit(event: Event) -> None:
        if not faults:
            try:
                runtime.emit(event)
            except Exception as error:
                faults.append(error)
                runtime.cancel.set()

    try:
        return _run(draft, replace(runtime, emit=emit))
    finally:
        if faults:
            raise faults[0]


def claim(plan: Plan) -> RunFolder:
    """Claims the folder of a run that a queue was given: what it holds stays."""
    folder = RunFolder.open(plan.request.runs, plan.run_id)
    if not folder.held and not folder.hold(HANDOVER_SECONDS):
        raise led_already(folder)
    folder.begin(plan.attempt)
    folder.remove_summary()
    return folder


def _run(draft: Plan, runtime: Runtime) -> Report:
    hosts, run_id, runs_dir = len(draft.hosts) + len(draft.spares), draft.run_id, draft.request.runs
    inventory, name = draft.inventory, draft.job.name
    if name and not run_id.startswith(f"{name}-"):
        text = f"the run's name is {run_id.rsplit('-', 3)[0]}, not {name!r}"
        runtime.emit(Notice("warning", text, hint="a name has 48 characters at most, of A-Z a-z 0-9 . _ -"))
    out: dict[str, FleetError] = {}
    fanout.check_limits(hosts, hosts, FDS_PER_HOST)
    own.own_folder(runs_dir, OPTION)  # before anything is sent
    if draft.request.sync:
        with step(runtime, "sync", hosts, out):
            draft, _, unsynced = with_enough(draft, runtime, lambda plan: sync_code(plan, runtime))
            out.update(unsynced)
    sessions, folder, origin = Sessions(runtime), None, None
    try:
        with step(runtime, "preflight", hosts, out):
            plan, unfit = preflight_all(draft, sessions)
            out.update(unfit)
        folder = RunFolder.create(runs_dir, run_id) if draft.request.claims is None else claim(draft)
        folder.lead(draft.request.lease)
        folder.event(Version())
        for name, why in out.items():
            record_left_out(folder, name, why)
        record = plan.record(time.time())
        origin = Origin(plan, record, folder, runtime, inventory)
        event = Planned(lease=record.lease, more=plan.told())
        runtime.emit(folder.notice("info", f"ranks meet at {plan.world.master}", event))
        try:
            with step(runtime, "start", len(plan.hosts)):
                started = start_all(plan, record, sessions)
        except FleetError as error:
            from fleet.ops.run.launch.attempts import begin_with_spares

            sessions.close()
            plan, record, waiting = begin_with_spares(plan, record, error, folder, runtime)
        else:
            for host, answer in started.items():
                folder.event(NodeStarted(pid=answer["pid"], folder=answer["dir"]), host=host)
            waiting = sessions.take_all(host.name for host in plan.hosts)
        folder.be_latest()
        logs = runs_dir / run_id
        size = f"{counted(plan.world.size, 'rank')} on {counted(len(plan.nodes), 'node')}"
        running = Running(world_size=plan.world.size, first_ranks=record.first_ranks, logs=str(logs))
        runtime.emit(folder.notice("info", f"run {run_id}: {size}, logs in {logs}", running))
        from fleet.ops.run.launch.attempts import follow_run  # long, and ranks begin meanwhile
        from fleet.ops.run.launch.course import Course

        if plan.request.detach:
            runtime.detach.set()
        return follow_run(record, folder, waiting, runtime, Course(plan))
    finally:
        sessions.close()
        if origin is not None:
            origin.wait()
        if folder is not None:
            folder.release()
