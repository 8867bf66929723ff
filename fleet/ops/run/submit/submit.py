"""Runs `fleet launch` for hosts that are requested from a queue: writes a batch script, submits it, and watches its
job."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from fleet.answers.run_start_events import Submitted, Version
from fleet.answers.runs import LeftAlone
from fleet.best_effort import best_effort
from fleet.engines.env_file import env_file
from fleet.errors import EXIT_OK, ConnectError, Interrupted, UsageError
from fleet.model import Report
from fleet.node.base.record import whoami
from fleet.ops.plans import RequestPlan
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.job import SCRIPT
from fleet.ops.run.kept.local import clear
from fleet.ops.run.plan.options import new_run_id, stem_of
from fleet.ops.run.submit.watch import OUTPUT, watch, watch_of
from fleet.own import seal
from fleet.own_process import command_line
from fleet.requests.submit import Submit, of_line
from fleet.runtime import Runtime
from fleet.sources import SOURCES, no_hosts

VARIABLES = "job.env"  # the file with the run's variables


def plan_of(request: Submit) -> RequestPlan[Submit]:
    """Returns the plan, whose text is the batch script. Raises UsageError for an invalid request."""
    run_id = new_run_id(request.name, f"{stem_of(request.name, 40)}-1" if request.each else request.name)
    env_file(request.env)  # raises UsageError for values that it cannot hold
    given = [f"--env-file={request.runs / run_id / VARIABLES}"] if request.env else []
    command = [*command_line(), "--on", request.on, "launch", *given, *request.command]
    name = run_id.rsplit("-", 3)[0].removesuffix("-1" if request.each else "")
    ask = replace(request, name=name, command=command, run=run_id)
    script = SOURCES.get(request.on).queue().script(ask)
    shown = {"on": request.on, "run": run_id, "logs": str(request.runs / run_id), "script": script}
    return RequestPlan(no_hosts(request.on), request, shown, script)


def run(plan: RequestPlan[Submit], runtime: Runtime) -> Report:
    """Submits the run, watches it, and returns the report of its end. Returns LeftAlone if the user leaves the run in
    the queue; several runs (--each) are always left there. If the queue refuses the run, removes the run's folder and
    raises UsageError. If it is not known whether the queue has the job, keeps the folder and raises ConnectError."""
    queue, request = SOURCES.get(plan.request.on).queue(), plan.request
    runs, count = request.runs, len(request.each)
    folders, made = list[RunFolder](), [of_line(plan.run_id, it + 1) for it in range(count)] or [plan.run_id]
    try:
        for run_id in made:
            folders.append(RunFolder.create(runs, run_id))
            _fill(folders[-1], plan, folders[0].path / SCRIPT)
            if runtime.cancel.is_set():
                raise Interrupted("interrupted", hint="nothing was requested")
        first = folders[0].path
        job = queue.submit(first / SCRIPT, first / OUTPUT, runtime.cancel)
    except (UsageError, Interrupted):
        for folder in folders:
            with best_effort("remove the folder of a run that the queue refused"):
                clear(folder.path)
        raise
    except ConnectError as error:
        folders[0].be_latest()
        hint = f"'fleet attach {plan.run_id}' looks for it again; 'fleet stop {plan.run_id}' cancels it"
        if count:
            hint = "'fleet attach RUN' looks for one again, 'fleet stop RUN' cancels one; 'squeue --me' shows their job"
        raise error.but(message=f"{error.message}; {runs / plan.run_id} stays", hint=hint) from None
    which, end_all, events = f"run {plan.run_id} is job {job} of {queue.what}", "", list[Submitted]()
    if count:
        task, at, cluster = job.partition("@")
        array = task.partition("_")[0]
        which = f"runs {made[0]} to {made[-1]} are job {array} of {queue.what}, a task a line"
        end_all = f"'scancel {f'-M {cluster} ' * bool(at)}{array}' ends all of them"
    text = f"{which}, logs in {runs / plan.run_id}"
    for line, folder in enumerate(folders, 1):
        events.append(replace(_event(folder, plan), job=queue.of_line(job, line) if count else job))
        notice = folder.notice("info", text, events[-1], hint=end_all or None)
    runtime.emit(replace(notice, happened=tuple(events)))
    folders[0].be_latest()
    if count:
        return Report("launch", (), EXIT_OK, answer=LeftAlone(plan.run_id, 0, str(folders[0].path), runs=count))
    return watch(watch_of(runs, plan.run_id, events[0], detach=request.detach, begun=True), runtime)


def _fill(folder: RunFolder, plan: RequestPlan[Submit], first: Path) -> None:
    """Writes the files that the job of a run needs, before it is submitted. first: the script of the first run."""
    try:
        script, variables = folder.path / SCRIPT, env_file(plan.request.env)
        try:
            os.link(first, script)  # all runs of --each share one script, which may be large
        except OSError:  # this is the first run, or the file system has no hard links
            _add(folder, SCRIPT, plan.text)
        if variables:
            _add(folder, VARIABLES, variables)
        folder.event(Version())
        folder.event(_event(folder, plan))  # before the queue confirms the job: this process may end before that
    finally:
        folder.release()  # the job needs the lock, and may begin before the queue has confirmed it


def _add(folder: RunFolder, name: str, text: str) -> None:
    """Writes a file, and checks that all of it was written. Raises UsageError if it was not."""
    file = folder.path / name
    try:
        folder.add(name, text)
        is_whole = file.exists() and file.read_bytes() == text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{file}: a value in it is no UTF-8", hint="put it into a file, and name that") from None
    if not is_whole:
        raise UsageError(f"cannot write {file}", hint="is the disk full?") from None


def _event(folder: RunFolder, plan: RequestPlan[Submit]) -> Submitted:
    options, on = plan.request.asked(), plan.request.on
    return Submitted(
        on=on,
        job="",
        by=whoami(),
        script=str(folder.path / SCRIPT),
        logs=str(folder.path),
        asked=options,
        seal=seal(folder.path.name, on, options),
    )
