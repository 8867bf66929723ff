"""Runs `fleet launch`: preflight, start and following of a run. Makes one report of its end."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import replace

from fleet import fanout, own
from fleet.answers.run_start_events import NodeStarted, Planned, Running, Version
from fleet.errors import FleetError, Occupied, UsageError
from fleet.events import Event, Notice
from fleet.model import Report
from fleet.ops.run.end.summary import not_started
from fleet.ops.run.kept.documents import SUMMARY
from fleet.ops.run.kept.folder import HANDOVER_SECONDS, OPTION, RunFolder, led_already
from fleet.ops.run.kept.job import HAS_ENDED, has_ended, submitted
from fleet.ops.run.plan.findings import also_keeping
from fleet.ops.run.plan.options import id_of
from fleet.ops.run.plan.origin import SECONDS, write_origin
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.start.spares import preflight_all, record_left_out, with_enough
from fleet.ops.run.start.start import contained, start_all, step
from fleet.ops.run.start.sync import deliver
from fleet.ops.run.start.waiting import Turn
from fleet.ops.sessions import Sessions
from fleet.rules.units import counted
from fleet.runtime import Runtime

FDS_PER_HOST = 4  # descriptors of a connection, and for a moment of the one that replaces it


def run(draft: Plan, runtime: Runtime) -> Report:
    """Launches the run, and returns the report of its end. Raises PreflightError or ConnectError if nothing was
    started.

    runtime.cancel: set once, it stops all ranks, with a grace period. Set twice, it kills them. Set three times, it
    ends the wait for the nodes. An exception of runtime.emit stops the run, too, and is raised after the run's end."""
    faults: list[Exception] = []

    def emit(event: Event) -> None:
        if not faults:
            try:
                runtime.emit(event)
            except Exception as error:
                faults.append(error)
                runtime.cancel.set()

    guarded, name = replace(runtime, emit=emit), draft.request.name
    draft = contained(draft, runtime.transport)
    try:
        if name and not draft.run_id.startswith(f"{name}-"):
            text = f"the run's name is {draft.run_id.rsplit('-', 3)[0]}, not {name!r}"
            guarded.emit(Notice("warning", text, hint="a name has 48 characters at most, of A-Z a-z 0-9 . _ -"))
        with ExitStack() as line:
            turn = Turn(draft, guarded, line) if draft.request.wait else None
            while True:
                try:
                    return _run(draft, guarded, turn, line)
                except Occupied as error:  # a run from another machine has begun meanwhile
                    assert turn is not None
                    turn.forestalled = error
                    draft = replace(draft, run_id=id_of(draft.request))
    finally:
        if faults:
            raise faults[0]


def claim(plan: Plan) -> RunFolder:
    """Returns the folder of a run that was submitted to a queue, and holds its lock. Removes the summary of an earlier
    attempt from it. Raises UsageError if the run has ended."""
    folder = RunFolder.open(plan.request.runs, plan.run_id)
    if not folder.held and not folder.hold(HANDOVER_SECONDS):
        raise led_already(folder)
    if has_ended(folder.path):  # a queue began the job again while the earlier process still coordinated the run
        folder.release()
        raise UsageError(f"run {plan.run_id} has ended meanwhile", hint=f"fleet logs {plan.run_id}", kind=HAS_ENDED)
    folder.begin(plan.attempt)
    (folder.path / SUMMARY).unlink(missing_ok=True)  # another attempt follows, or may follow
    return folder


def _run(draft: Plan, runtime: Runtime, turn: Turn | None, line: ExitStack) -> Report:
    """Tries once to launch the run. line: is closed as soon as ranks run. Raises Occupied if the request is to wait,
    and another run uses the hosts. Before that, removes the run's folder, unless ranks may still run on a host."""
    hosts, run_id, runs_dir = len(draft.hosts) + len(draft.spares), draft.run_id, draft.request.runs
    inventory = draft.inventory
    out: dict[str, FleetError] = {}
    fanout.check_limits(hosts, hosts, FDS_PER_HOST)
    own.own_folder(runs_dir, OPTION)  # checked before anything is sent
    found = list[Notice]()
    sessions = Sessions(replace(runtime, emit=also_keeping(found.append, runtime.emit)))

    def prepare(plan: Plan) -> Plan:
        out.clear()
        found.clear()
        if plan.request.delivers:
            with step(runtime, "sync", hosts, out):
                plan, _, unsynced = with_enough(plan, runtime, lambda each: deliver(each, runtime))
                out.update(unsynced)
        with step(runtime, "preflight", hosts, out):
            try:
                plan, unfit = preflight_all(plan, sessions)
            except FleetError:
                sessions.close()  # a launch that waits connects again later, because these may be dead by then
                raise
            out.update(unfit)
        return plan

    with ExitStack() as at_end:
        dropped = at_end.enter_context(ExitStack())
        at_end.callback(sessions.close)
        plan = turn.wait_for_turn(draft, prepare) if turn else prepare(draft)
        folder = RunFolder.create(runs_dir, run_id) if draft.request.claims is None else claim(draft)
        at_end.callback(folder.release)
        folder.lead(draft.request.lease)
        folder.event(Version())
        for notice in found:
            folder.keep(notice)
        for name, why in out.items():
            record_left_out(folder, name, why)
        record = plan.record(time.time())
        at_end.callback(wait, [write_origin(plan, record, folder, runtime, inventory)], SECONDS + 1)
        at_end.callback(sessions.close)
        event = Planned(lease=record.lease, more=plan.masked())
        runtime.emit(folder.notice("info", f"ranks meet at {plan.world.master}", event))
        try:
            with step(runtime, "start", len(plan.hosts)):
                started = start_all(plan, record, sessions)
        except Occupied as error:
            if error.may_run:
                from fleet.ops.run.launch.attempts import conclude

                report = not_started(error, run_id, record.logs, record.world_size, record.hosts)
                conclude(report, record, [], folder, runtime, None)
            else:
                dropped.callback(shutil.rmtree, folder.path, ignore_errors=True)
            raise
        except FleetError as error:
            from fleet.ops.run.launch.attempts import begin_with_spares

            sessions.close()
            plan = replace(plan, request=replace(plan.request, wait=False))  # the run has begun, so it waits no more
            plan, record, waiting = begin_with_spares(plan, record, error, folder, runtime)
        else:
            for host, answer in started.items():
                folder.event(NodeStarted(pid=answer["pid"], folder=answer["dir"]), host=host)
            waiting = sessions.take_all(host.name for host in plan.hosts)
        line.close()
        if plan.request.claims is None or submitted(folder.path) is None:  # a submitted run is the latest already
            folder.be_latest()
        logs = runs_dir / run_id
        size = f"{counted(plan.world.size, 'rank')} on {counted(len(plan.nodes), 'node')}"
        running = Running(
            world_size=plan.world.size,
            first_ranks=record.first_ranks,
            logs=str(logs),
            attempt=record.attempt or None,
        )
        runtime.emit(folder.notice("info", f"run {run_id}: {size}, logs in {logs}", running))
        from fleet.ops.run.launch.attempts import follow_run  # imported late: it takes long, and ranks begin meanwhile
        from fleet.ops.run.launch.begin import Course

        if plan.request.detach:
            runtime.detach.set()
        return follow_run(record, folder, waiting, runtime, Course(plan))
