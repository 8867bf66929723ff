"""`fleet stop RUN`: ends a run on all its nodes, whatever head started it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fleet.answers.run_events import StopAll
from fleet.answers.runs import RunStopped, StoppedThere
from fleet.each import on_each
from fleet.errors import HostFailed, UsageError
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.model import Host, Report, Result, exit_code_of
from fleet.node.base.record import whoami
from fleet.node.gang.ends import stopped_by
from fleet.ops.plans import Asked
from fleet.ops.run.find.attach import take
from fleet.ops.run.find.find import FoundRun, find, over
from fleet.ops.run.find.here import chosen_here, hosts_of
from fleet.ops.run.follow.behind import stop_behind
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.launch.attempts import conclude
from fleet.ops.run.launch.loop import Run
from fleet.ops.sessions import STOP_SECONDS
from fleet.protocol.messages.run import Stopped, StopSpec, Verdict
from fleet.requests.runs import Stop
from fleet.rules.left_behind import UNDYING, undying
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.program import call


def note(folder: RunFolder, reason: str, grace: float) -> None:
    """Notes, where no process here follows the run, that it is not to be led again."""
    with suppress(OSError, UsageError):  # no such folder here, another user's, a disk that cannot be written
        if folder.hold():
            folder.event(StopAll(reason=reason, grace=grace))
            folder.say(leads=False)
            folder.release()


def end_here(found: FoundRun, runs_dir: Path, runtime: Runtime, end: Verdict) -> None:
    """Writes the summary of a run that no node reports, and ends the process that waits for one."""
    folder = take(found, runs_dir)
    try:
        if not (folder.path / "summary.json").exists():  # who led it may have ended just now
            record = found.record(runs_dir)
            left = Run(record, folder, {}, runtime)
            left.gang.stop(end, time.time())
            conclude(left.conclude(left.follow(), {}), record, [], folder, runtime)
    finally:
        folder.release()


def run(plan: Asked[Stop], runtime: Runtime) -> Report:
    """Hosts that do not answer are tried again by a process that this one leaves running; they are errors here."""
    inventory = hosts_of(plan.request.run, plan.request.runs, plan.inventory)
    runs, answers = find(inventory, runtime, live=False)
    found = chosen_here(plan.request.run, runs, answers, plan.request.runs, inventory, runtime.ask)
    grace = found.about["stop_grace"] if plan.request.grace is None else plan.request.grace
    end = stopped_by(whoami())
    spec: StopSpec = {"run": found.run_id, "grace": grace, "reason": end["message"], "end": end}

    def stop(session: Session, host: Host) -> Result:
        answer = call(session, "run.stop", spec, Stopped, timeout=grace + STOP_SECONDS, cancel=runtime.cancel)
        # who follows the run ends it everywhere once it has ended on one node, and may have been quicker
        part = found.parts.get(host.name)
        was = "running" if answer["was"] == "gone" and not (part and over(part)) else answer["was"]
        left = undying(answer)
        error = HostFailed(left, host=host.name, kind="stubborn", hint=UNDYING) if left else None
        return Result(
            host.name, not error, 0 if not error else None, error=error, answer=StoppedThere(was, answer["left"])
        )

    answered = {result.host for result in answers if result.ok}
    lost = [node.host for node in found.unknown if node.host.name in answered]  # the run's folder, not its processes
    hosts = (*found.hosts.values(), *found.replaced, *lost)
    stopped = on_each(hosts, replace(runtime, fanout=max(1, len(hosts))), stop, what="stopping")
    unknown = [result for result in answers if not result.ok] if found.is_partial else []
    left = [result.host for result in (*stopped, *unknown) if result.error is not None and result.answer is None]
    answer = RunStopped(found.run_id)
    if not found.parts:
        end_here(found, plan.request.runs, runtime, end)
    if not found.live and found.state != "done" and found.record(plan.request.runs).restartable:
        answer = replace(answer, restartable=True)  # until now
    if left:
        record = found.record(plan.request.runs).but(stop_grace=grace)
        RunFolder.open(plan.request.runs, found.run_id).release()
        later = [host for host in inventory.hosts if host.name in left]
        becomes = stop_behind(record, later, runtime, end, None if found.parts else end)
        runtime.emit(Notice("warning", f"{fold(left)}: {becomes}"))
    note(RunFolder(plan.request.runs / found.run_id), spec["reason"], grace)
    results = (*stopped, *unknown)
    return Report("stop", results, exit_code_of(results), answer=answer)
