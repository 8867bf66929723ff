"""Runs `fleet stop RUN`, which ends a run on all its nodes, whatever head started it. Runs `fleet forget RUN`, which
gives up a run whose hosts are gone for good, and contacts no host."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fleet.answers.run_events import StopAll
from fleet.answers.runs import GivenUp, LogsHere, RunStopped, StoppedThere
from fleet.best_effort import best_effort
from fleet.each import on_each
from fleet.errors import EXIT_OK, HostFailed, UsageError
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.model import Host, Report, Result, exit_code_of
from fleet.node.base.record import whoami
from fleet.node.gang.ends import stopped_by
from fleet.ops.plans import RequestPlan
from fleet.ops.run.end.notify import of_record
from fleet.ops.run.find.find import FoundRun, find, over
from fleet.ops.run.find.here import chosen_here, from_folder, hosts_of
from fleet.ops.run.follow.background import stop_in_background
from fleet.ops.run.kept.documents import SUMMARY, RunState, read_object
from fleet.ops.run.kept.folder import HANDOVER_SECONDS, MOMENT_SECONDS, RunFolder, led_already
from fleet.ops.run.kept.local import choose, names
from fleet.ops.run.launch.attempts import conclude
from fleet.ops.run.launch.loop import Run
from fleet.ops.sessions import STOP_SECONDS
from fleet.protocol.messages.run import Stopped, Verdict
from fleet.protocol.messages.run_specs import StopSpec
from fleet.requests.runs import Forget, Stop
from fleet.rules.left_behind import UNDYING, survivors_text
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.program import call


def note(folder: RunFolder, reason: str, grace: float) -> None:
    """Records in the run's folder that no process may coordinate the run again. Does nothing if a process follows it
    here."""
    with best_effort("record that the run is to end"), suppress(FileNotFoundError, UsageError):  # not here, or not ours
        if folder.hold():
            folder.event(StopAll(reason=reason, grace=grace))
            folder.set_state(leads=False)
            folder.release()


def take(found: FoundRun, runs_dir: Path) -> RunFolder:
    """Returns the folder of a run that no node knows, and holds its lock. Ends a coordinator without a terminal that
    holds the lock. Raises UsageError if another fleet command follows the run."""
    folder = RunFolder.open(runs_dir, found.run_id)
    if folder.held:
        return folder
    state = RunState(folder.path)
    makes_room = state.values.get("detached") and state.leader_lives is not None and folder.is_ours
    if makes_room and state.leader_lives:
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(state.leader["pid"], signal.SIGTERM)
    if folder.hold(HANDOVER_SECONDS if makes_room else MOMENT_SECONDS):
        return folder
    raise led_already(folder)


def end_here(found: FoundRun, runs_dir: Path, runtime: Runtime, end: Verdict) -> None:
    """Writes the summary of a run that no node reports, and ends the process that still waits for a node."""
    folder = take(found, runs_dir)
    try:
        if not (folder.path / SUMMARY).exists():  # its coordinator may just have written one
            record = found.record(runs_dir)
            left = Run(record, folder, {}, runtime)
            left.gang.stop(end, time.time())
            conclude(left.conclude(left.follow(), {}), record, [], folder, runtime, of_record(folder))
    finally:
        folder.release()


def run(plan: RequestPlan[Stop], runtime: Runtime) -> Report:
    """Stops the run. A host that does not answer has an error in the report, and a background process stops the run
    there later."""
    inventory = hosts_of(plan.request.run, plan.request.runs, plan.inventory)
    runs, answers = find(inventory, runtime, live=False)
    found = chosen_here(plan.request.run, runs, answers, plan.request.runs, inventory, runtime.ask)
    grace = found.about["stop_grace"] if plan.request.grace is None else plan.request.grace
    end = stopped_by(whoami())
    spec: StopSpec = {"run": found.run_id, "grace": grace, "reason": end["message"], "end": end}

    def stop(session: Session, host: Host) -> Result:
        answer = call(session, "run.stop", spec, Stopped, timeout=grace + STOP_SECONDS, cancel=runtime.cancel)
        # once one node has stopped, the run's coordinator stops all others, and may have been quicker than this command
        part = found.parts.get(host.name)
        was = "running" if answer["was"] == "gone" and not (part and over(part)) else answer["was"]
        left = survivors_text(answer)
        error = HostFailed(left, host=host.name, kind="stubborn", hint=UNDYING) if left else None
        return Result(
            host.name, not error, 0 if not error else None, error=error, answer=StoppedThere(was, answer["left"])
        )

    answered = {result.host for result in answers if result.ok}
    lost = [node.host for node in found.unknown if node.host.name in answered]  # perhaps only the run's folder is lost
    hosts = (*found.hosts.values(), *found.replaced, *lost)
    stopped = on_each(hosts, replace(runtime, fanout=max(1, len(hosts))), stop, what="stopping")
    unknown = [result for result in answers if not result.ok] if found.is_partial else []
    left = [result.host for result in (*stopped, *unknown) if result.error is not None and result.answer is None]
    answer = RunStopped(found.run_id)
    if not found.parts:
        end_here(found, plan.request.runs, runtime, end)
    if not found.live and found.state != "done" and found.record(plan.request.runs).restartable:
        answer = replace(answer, restartable=True)  # this stop ends the chance of another attempt
    if left:
        record = found.record(plan.request.runs).but(stop_grace=grace)
        RunFolder.open(plan.request.runs, found.run_id).release()
        later = [host for host in inventory.hosts if host.name in left]
        becomes = stop_in_background(record, later, runtime, end, None if found.parts else end)
        runtime.emit(Notice("warning", f"{fold(left)}: {becomes}"))
    note(RunFolder(plan.request.runs / found.run_id), spec["reason"], grace)
    results = (*stopped, *unknown)
    return Report("stop", results, exit_code_of(results), answer=answer)


def forget(plan: RequestPlan[Forget], runtime: Runtime) -> Report:
    """Gives up the hosts on which the run's end is not known, or whose logs are not complete. Raises UsageError for a
    run that is over on all hosts, with all logs here."""
    run_id = choose(plan.request.run, names(plan.request.runs))
    path = plan.request.runs / run_id
    if not (path / SUMMARY).exists() and (found := from_folder(path, plan.inventory)) is not None:
        end_here(found, plan.request.runs, runtime, stopped_by(whoami()))
    summary = read_object(path / SUMMARY)
    given_up = {*summary.get("unknown", ()), *summary.get("incomplete_logs", ())}
    if not given_up:
        raise UsageError(f"run {run_id} needs none of its hosts any more", hint="'fleet runs --prune' removes it")
    RunFolder(path).amend(SUMMARY, forgotten=True)
    results = tuple(Result(name, True, answer=GivenUp(name in given_up)) for name in summary["hosts"])
    return Report("forget", results, EXIT_OK, answer=LogsHere(run_id, str(path)))
