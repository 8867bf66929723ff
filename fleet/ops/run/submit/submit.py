"""`fleet launch` from where hosts are only requested: a batch script, its job, and the wait for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.answers.run_events import Submitted, Version
from fleet.engines.env_file import env_file
from fleet.errors import UsageError
from fleet.model import Report
from fleet.node.base.record import whoami
from fleet.ops.plans import Asked
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.job import SCRIPT
from fleet.ops.run.kept.local import clear
from fleet.ops.run.plan.options import new_run_id
from fleet.ops.run.submit.watch import OUTPUT, watch, watch_of
from fleet.own import seal
from fleet.own_process import command_line
from fleet.requests.submit import Submit
from fleet.runtime import Runtime
from fleet.sources import SOURCES, no_hosts

VARIABLES = "job.env"


@dataclass(frozen=True)
class SubmitPlan(Asked[Submit]):
    """text: the batch script."""

    run_id: str


def plan_of(request: Submit) -> SubmitPlan:
    """UsageError for what cannot be requested."""
    run_id = new_run_id(request.name, request.name)
    env_file(request.env)  # whether it can be one
    given = [f"--env-file={request.runs / run_id / VARIABLES}"] if request.env else []
    command = [*command_line(), "--on", request.on, "launch", *given, *request.command]
    ask = replace(request, name=run_id.rsplit("-", 3)[0], command=command)
    script = SOURCES.get(request.on).queue().script(ask)
    shown = {"on": request.on, "run": run_id, "logs": str(request.runs / run_id), "script": script}
    return SubmitPlan(no_hosts(request.on), request, shown, script, run_id)


def run(plan: SubmitPlan, runtime: Runtime) -> Report:
    """The run's own end, as its job has it; LeftAlone where it is left in the queue. UsageError where it is refused:
    then nothing is left of it."""
    queue, runs = SOURCES.get(plan.request.on).queue(), plan.request.runs
    folder, logs = RunFolder.create(runs, plan.run_id), runs / plan.run_id
    try:
        script, variables = Path(folder.add(SCRIPT, plan.text)), env_file(plan.request.env)
        if variables:
            folder.add(VARIABLES, variables)
        if not script.exists():
            raise UsageError(f"cannot write {script}", hint="is the disk full?")
        folder.event(Version())
        try:
            job = queue.submit(script, plan.run_id, folder.path / OUTPUT)
        except UsageError:
            with suppress(OSError):
                clear(folder.path)  # what was refused was never there
            raise
        text = f"run {plan.run_id} is job {job} of {queue.what}, logs in {logs}"
        options = plan.request.asked()
        event = Submitted(
            on=plan.request.on,
            job=job,
            by=whoami(),
            script=str(script),
            logs=str(logs),
            asked=options,
            seal=seal(plan.run_id, plan.request.on, options),
        )
        runtime.emit(folder.notice("info", text, event))
        folder.be_latest()
    finally:
        folder.release()
    return watch(watch_of(runs, plan.run_id, event, detach=plan.request.detach, begun=True), runtime)
