"""Runs `fleet launch` with --on slurm, or a similar source, outside of a job: it requests the hosts in a queue."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fleet.answers.runs import RunStopped
from fleet.api import Fleet
from fleet.cli.context import finish
from fleet.cli.inventory import job_here, without_unfit
from fleet.cli.line.command import one_spelling, was_typed
from fleet.cli.line.line import settings_of, the_line
from fleet.cli.line.values import Scrolling
from fleet.cli.run.follow import BY_ATTACH, follow
from fleet.cli.run.launch_options import SourceOption
from fleet.cli.screen.output import echo, write_plan
from fleet.engines.launchers import REFUSED, REFUSED_IN_JOBS
from fleet.errors import EXIT_OK, InventoryError, NoInventory, UsageError
from fleet.inventory.secret import COMMAND, unless_secret
from fleet.model import Host, Report
from fleet.sources import INVENTORY, SOURCES, no_hosts
from fleet.sources.source import Source
from fleet.version import __version__

# fleet's options that apply to this command only, and are not passed on: the job has its own --detach, for example
HERE = {
    *("env", "env_file", "detach", "ranks"),
    *("inventory", "on", "hosts", "exclude", "transport", "dry_run", "json", "verbose", "quiet"),
}


def waited_for(requested: Mapping[str, Any]) -> Source | None:
    """Returns the source in whose queue hosts are requested; None if the hosts are available. requested: the source's
    options that were given. Raises UsageError if one of them has no meaning here."""
    name = settings_of().on
    source = SOURCES.get(name) if name != INVENTORY else None
    within = source.detect(os.environ) if source is not None and "submit" not in requested else None
    for given in (option.replace("_", "-") for option in requested):
        owners = [own for own in map(SOURCES.get, SOURCES.own) if given in {it.name for it in own.options}]
        if owners and (name not in {own.name for own in owners} or within):
            why, instead = REFUSED.get(given, (f"it is for --on {owners[0].asked}", ""))
            where = f"this is {within}, which has its nodes" if within else why
            hint = f"leave out --{given}" if within else f"give --on {owners[0].name}, or leave out --{given}"
            raise UsageError(f"--{given}: {where}", hint=instead or hint)
    return source if source is not None and source.options and within is None else None


def as_before(run: str, option: str, runs_dir: Path, requested: dict[str, Any]) -> dict[str, Any]:
    """Returns the request of an earlier run's job, with the options that are given now. option: the name of the option
    that names that run. The job gets the run's id and --yes, because there `latest` is another run and no user can
    confirm."""
    settings, ctx = settings_of(), click.get_current_context()
    ctx.params |= {option: run, "yes": True}
    ctx.set_parameter_source("yes", ParameterSource.COMMANDLINE)
    found = job_here(run, runs_dir)
    if found is None or settings.on not in (INVENTORY, found[1].on):
        return requested
    settings.on = found[1].on
    if settings.transport == SOURCES.get(settings.on).transport:  # the earlier run's transport
        settings.transport = type(settings).transport
    within = "submit" not in requested and SOURCES.get(settings.on).detect(os.environ)
    return requested if within else {**found[1].asked, **requested}  # inside the job the hosts are there


def of_file(source: Source) -> dict[str, Any]:
    """Returns the options for a queue in the inventory's file: a section with the source's name has what a site always
    requests. sbatch's options are passed on. Raises InventoryError for unknown ones."""
    from fleet.engines.translate import options_of
    from fleet.inventory.fields import suggest
    from fleet.inventory.find import decode, display, find_inventory, is_yaml, read
    from fleet.inventory.yaml_file import read_options

    try:
        path = find_inventory(None, Path.cwd(), os.environ)
    except NoInventory:
        return {}
    text = decode(read(path, display(path)), display(path))
    section = read_options(text, display(path), source.name) if is_yaml(text, display(path)) else {}
    many, found, more = {option.name: option.many for option in source.options}, dict[str, Any](), list[str]()
    for key, value in section.items():
        name = one_spelling(key)
        if name not in (known := {*many, *options_of("sbatch")}):
            hint = suggest(name, known) or f"fleet's own options belong on the command line: --{name}"
            raise InventoryError(f"{source.name}: no option {name}", where=display(path), hint=hint)
        if value is False:
            continue
        if name in many:
            found[name.replace("-", "_")] = [value] if many[name] and isinstance(value, str) else value
        else:
            more.append(f"--{name}" if value is True else f"--{name}={value}")
    return {**found, "sbatch_arg": (*more, *found.get("sbatch_arg", ()))}


def submit(
    source: Source, script: str | None, args: Sequence[str], given: dict[str, Any], requested: dict[str, Any]
) -> int:
    """Requests hosts, waits for them, and follows the run."""
    from fleet.ops.run.plan.options import check_containers, name_of, read_env, read_lines
    from fleet.ops.run.submit.submit import plan_of, run
    from fleet.requests.launch import Launch
    from fleet.requests.submit import Submit, both

    settings, ranks = settings_of(), given["ranks"]
    typed = the_line().typed
    at = len(typed) - len(args) - 1
    quiet = typed[at - 1 : at] == ("-q",) and not given["no_python"]
    if quiet and script and args and not (Path(script).suffix or os.path.exists(script)):
        raise UsageError(
            f"-q is fleet's --quiet, and {script} then the script",
            hint=shlex.join([*typed[: at - 1], "--qos", *typed[at:]]),
        )
    if given["wait"]:
        why, hint = REFUSED_IN_JOBS["wait"]
        raise UsageError(f"--wait: {why}", hint=hint)
    if (line := given["notify"]) is not None and unless_secret(COMMAND, line) is None:
        raise UsageError(
            f"{COMMAND}: it may hold a secret, and the job's script would show it",
            hint="put it in a script that only you can read, and give that: --notify ~/bin/notify.sh",
        )
    if given["container"]:
        inside = Launch(script or "-", container=given["container"], wheels=given["wheels"])
        check_containers(inside, [Host("each node", "")])
    for option in ("inventory", "transport"):
        if getattr(settings, option) != getattr(type(settings), option):
            raise UsageError(f"--on {source.name} has its own hosts, and takes no --{option}", hint="leave it out")
    requested.pop("submit", None)
    always = of_file(source)
    passed = (*always.pop("sbatch_arg", ()), *requested.pop("sbatch_arg", ()))
    requested = {**always, **requested, **({"sbatch_arg": passed} if passed else {})}
    name = given["name"] or name_of(script or str(given["again"] or given["from_"]), args)
    more = [f"--nproc-per-node={requested['ntasks_per_node']}"] if _ranks_are_tasks(given, requested) else []
    each = read_lines(Path(requested.pop("each")), script) if requested.get("each") else []
    named = [*["--"] * script.startswith("-"), script] if script else []
    command = [*_typed(), *more, *named, *args]
    request = Submit(
        on=source.name,
        runs_dir=given["runs_dir"],
        name=Path(name).stem if not given["module"] else name,
        command=command,
        env=read_env(given["env_file"], given["env"], (), os.environ)[0],
        nodes=requested.pop("nodes", None) or str(given["nnodes"] or "").replace(":", "-"),
        only=both(requested.pop("nodelist", None), settings.hosts),
        without=both(requested.pop("exclude", None), without_unfit(settings.exclude, source, passed)),
        environ=os.environ,
        options=requested,
        grace=requested.pop("grace", None) if given["grace"] is None else given["grace"],
        detach=given["detach"],
        each=each,
        made=[f"made by fleet {__version__}; it runs under plain sbatch, too"],
    )
    plan = plan_of(request)
    settings.hosts = settings.exclude = None  # these are the job's; the next commands find the job by the run
    settings.on = INVENTORY
    if settings.dry_run:
        return write_plan(plan)
    # SIGTERM ends only this command, not the job: it comes when a login node shuts down, or a session ends
    return follow(_nowhere(source.name).plan.do(plan, run), ranks, [signal.SIGTERM])


def attach(run: str, runs_dir: Path, ranks: Scrolling, *, detach: bool) -> int | None:
    """Follows the run of a job. Returns the exit code; None if the run has no job."""
    from fleet.ops.run.submit.watch import watch, watch_of

    if (found := job_here(run, runs_dir)) is None:
        return None
    run_id, job = found
    plan = watch_of(runs_dir, run_id, job, detach=detach)
    if settings_of().dry_run:
        return write_plan(plan)
    return follow(_nowhere(job.on).plan.do(plan, watch), ranks, BY_ATTACH)


def stop(run: str, runs_dir: Path) -> int | None:
    """Cancels the job of a run. Returns the exit code; None if the job has begun, or if the run has no job."""
    from fleet.ops.run.kept.job import SCRIPT, ended_in_queue, has_ended, keep_end
    from fleet.sources.queue import Standing, State

    found = None if settings_of().dry_run else job_here(run, runs_dir)
    if found is None:
        return None
    run_id, job = found
    queue, folder = SOURCES.get(job.on).queue(), runs_dir / run_id
    requested = job.job, folder / SCRIPT
    # a job ends a moment after its run, so the queue may still show it as running
    standing = Standing(State.OVER) if has_ended(folder) else queue.look([requested])[requested]
    if standing.state in (State.RUNNING, State.UNKNOWN):
        return None
    what = "had ended"
    if standing.state is State.WAITING:
        queue.cancel(*requested)
        standing = queue.look([requested])[requested]
        what = f"job {job.job} {'is out of the queue' if standing.state is State.OVER else 'was requested to end'}"
    if standing.state is State.OVER:
        keep_end(folder, ended_in_queue(folder, job.job, standing))
    answer = RunStopped(run_id)
    return finish(Report("stop", (), EXIT_OK, answer=answer), lambda _: echo(f"run {run_id}: {what}"))


def _nowhere(name: str) -> Fleet:
    nowhere = no_hosts(name)
    return Fleet(inventory=nowhere, everyone=nowhere, transport="local")


def _ranks_are_tasks(given: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Returns whether each node has one rank per task: no option and no devices give another number."""
    devices = any(options.get(name) for name in ("gres", "gpus_per_node"))
    return bool(options.get("ntasks_per_node")) and given["nproc_per_node"] is None and not devices


def _typed() -> Iterator[str]:
    """Yields the options of this command line that are passed on to the job."""
    ctx, settings = click.get_current_context(), settings_of()
    given = {name: value for name, value in vars(settings).items() if value != getattr(type(settings), name)}
    given |= {name: value for name, value in ctx.params.items() if was_typed(ctx, name)}
    for param in ctx.command.params:
        if not isinstance(param, click.Option) or isinstance(param, SourceOption) or param.name in HERE:
            continue
        flag, value = max(param.opts, key=len), given.get(str(param.name))
        if param.is_flag:
            yield from [flag] * bool(value)
        elif value is not None:
            yield from (f"{flag}={each}" for each in (value if param.multiple else [value]))
