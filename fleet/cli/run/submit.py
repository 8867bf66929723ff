"""`fleet launch --on slurm` and the like, typed where hosts are only requested."""

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
from fleet.cli.inventory import job_here
from fleet.cli.line.command import CommonOption
from fleet.cli.line.options import TYPED, settings_of
from fleet.cli.line.values import Scrolling
from fleet.cli.run.follow import BY_ATTACH, follow
from fleet.cli.run.launch_options import SourceOption
from fleet.cli.screen import plans
from fleet.cli.screen.output import echo
from fleet.engines.launchers import REFUSED
from fleet.errors import EXIT_OK, UsageError
from fleet.model import Report
from fleet.sources import INVENTORY, SOURCES, no_hosts
from fleet.sources.source import Source
from fleet.version import __version__

# of fleet's options those that are for this end: the job has a --detach of its own, and so on
HERE = {
    "env",
    "env_file",
    "detach",
    "dry_run",
    "json",
    "quiet",
    "verbose",
    "on",
    "hosts",
    "exclude",
    "inventory",
    "transport",
    "ranks",
}


def waited_for(asked: Mapping[str, Any]) -> Source | None:
    """The source in whose queue hosts are requested; None where they are there. asked: those of its options that were
    given."""
    name = settings_of().on
    source = SOURCES.get(name) if name != INVENTORY else None
    within = source.detect(os.environ) if source is not None else None
    for given in (option.replace("_", "-") for option in asked):
        owners = [own for own in map(SOURCES.get, SOURCES.own) if given in {it.name for it in own.options}]
        if owners and (name not in {own.name for own in owners} or within):
            why, instead = REFUSED.get(given, (f"it is for --on {owners[0].asked}", ""))
            where = f"this is {within}, which has its nodes" if within else why
            hint = f"leave out --{given}" if within else f"give --on {owners[0].name}, or leave out --{given}"
            raise UsageError(f"--{given}: {where}", hint=instead or hint)
    return source if source is not None and source.options and within is None else None


def as_before(run: str, option: str, runs_dir: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Returns the request as the job of an earlier run made it, but for the options that are given now. option: the one
    that names that run. In the job, `latest` is another one, and no user can confirm it."""
    settings, ctx = settings_of(), click.get_current_context()
    ctx.params |= {option: run, "yes": True}
    ctx.set_parameter_source("yes", ParameterSource.COMMANDLINE)
    found = job_here(run, runs_dir)
    if found is None or settings.on not in (INVENTORY, found[1].on):
        return asked
    settings.on = found[1].on
    if settings.transport == SOURCES.get(settings.on).transport:  # the earlier run's
        settings.transport = type(settings).transport
    return {**found[1].asked, **asked}


def claimed(runs_dir: Path) -> dict[str, Any]:
    """The run that the job is for in which this is typed, and its attempt; {} where it is no certain one."""
    name = settings_of().on
    if name == INVENTORY:
        return {}
    run, attempt = SOURCES.get(name).run_of(os.environ)
    if run is None or (attempt == 0 and (runs_dir / run / "run.json").exists()):  # another one, in the same job
        return {}
    return {"claims": run, "attempt": attempt}


def submit(
    source: Source, script: str | None, args: Sequence[str], given: dict[str, Any], asked: dict[str, Any]
) -> int:
    """Ask for hosts, wait, and look on."""
    from fleet.ops.run.plan.options import name_of, read_env
    from fleet.ops.run.submit.submit import plan_of, run
    from fleet.requests.submit import Submit

    settings, ranks = settings_of(), given["ranks"]
    typed = click.get_current_context().find_root().meta.get(TYPED, ())
    at = len(typed) - len(args) - 1
    quiet = typed[at - 1 : at] == ("-q",) and not given["no_python"]
    if quiet and script and args and not (Path(script).suffix or os.path.exists(script)):
        raise UsageError(
            f"-q is fleet's --quiet, and {script} then the script",
            hint=shlex.join([*typed[: at - 1], "--qos", *typed[at:]]),
        )
    for option in ("inventory", "transport"):
        if getattr(settings, option) != getattr(type(settings), option):
            raise UsageError(f"--on {source.name} has its own hosts, and takes no --{option}", hint="leave it out")
    name = given["name"] or name_of(script or str(given["again"] or given["from_"]), args)
    more = [f"--nproc-per-node={asked['ntasks_per_node']}"] if _ranks_are_tasks(given, asked) else []
    command = [*_typed(), *more, *([script] if script else []), *args]
    request = Submit(
        on=source.name,
        runs_dir=given["runs_dir"],
        name=Path(name).stem if not given["module"] else name,
        command=command,
        env=read_env(given["env_file"], given["env"], (), os.environ)[0],
        nodes=asked.pop("nodes", None) or str(given["nnodes"] or 1).replace(":", "-"),
        only=_both(asked.pop("nodelist", None), settings.hosts),
        without=_both(asked.pop("exclude", None), settings.exclude),
        options=asked,
        grace=asked.pop("grace", None) if given["grace"] is None else given["grace"],
        detach=given["detach"],
        made=[f"made by fleet {__version__}; it runs under plain sbatch, too"],
    )
    plan = plan_of(request)
    settings.hosts = settings.exclude = None  # the job's: what is typed next finds it by the run
    settings.on = INVENTORY
    if settings.dry_run:
        return plans.tell(plan)
    # SIGTERM is this command's end (a login node's, a session's), and not the wish to end the job
    return follow(_nowhere(source.name).plan.do(plan, run), ranks, [signal.SIGTERM])


def attach(run: str, runs_dir: Path, ranks: Scrolling, *, detach: bool) -> int | None:
    """Look on at the run of a job; None where it is of none."""
    from fleet.ops.run.submit.watch import watch, watch_of

    if (found := job_here(run, runs_dir)) is None:
        return None
    run_id, job = found
    plan = watch_of(runs_dir, run_id, job, detach=detach)
    if settings_of().dry_run:
        return plans.tell(plan)
    return follow(_nowhere(job.on).plan.do(plan, watch), ranks, BY_ATTACH)


def stop(run: str, runs_dir: Path) -> int | None:
    """Take the job of a run out of its queue; None where it has begun, or is of none."""
    from fleet.ops.run.kept.job import SCRIPT, has_ended
    from fleet.sources.queue import Standing, State

    found = None if settings_of().dry_run else job_here(run, runs_dir)
    if found is None:
        return None
    run_id, job = found
    queue = SOURCES.get(job.on).queue()
    # its job takes a moment longer to end than the run
    ended = has_ended(runs_dir / run_id)
    standing = Standing(State.OVER) if ended else queue.look([job.job])[job.job]
    if standing.state in (State.RUNNING, State.UNKNOWN):
        return None
    if standing.state is State.WAITING:
        queue.cancel(job.job, runs_dir / run_id / SCRIPT)
    what = "had ended" if standing.state is State.OVER else f"job {job.job} is out of the queue"
    answer = RunStopped(run_id)
    return finish(Report("stop", (), EXIT_OK, answer=answer), lambda _: echo(f"run {run_id}: {what}"))


def _nowhere(name: str) -> Fleet:
    nowhere = no_hosts(name)
    return Fleet(inventory=nowhere, everyone=nowhere, transport="local")


def _both(*sets: str | None) -> str | None:
    """One node set of several."""
    return ",".join(filter(None, sets)) or None


def _ranks_are_tasks(given: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """One rank for each task of a node, unless devices give another number."""
    devices = any(options.get(name) for name in ("gres", "gpus_per_node"))
    return bool(options.get("ntasks_per_node")) and given["nproc_per_node"] is None and not devices


def _typed() -> Iterator[str]:
    """The options of this command line that are for the job."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if not isinstance(param, click.Option) or isinstance(param, SourceOption) or param.name in HERE:
            continue
        value = _value(ctx, param)
        for each in value if param.multiple else [value]:
            flag = max(param.opts, key=len)
            if param.is_flag:
                yield from [flag] * bool(each)
            elif each is not None:
                yield f"{flag}={each}"


def _value(ctx: click.Context, param: click.Option) -> Any:
    """Returns what was typed; None, or (), where nothing was."""
    if isinstance(param, CommonOption):
        settings = settings_of()
        value = getattr(settings, str(param.name))
        return value if value != getattr(type(settings), str(param.name)) else None
    typed = ctx.get_parameter_source(str(param.name)) not in (ParameterSource.DEFAULT, None)
    return ctx.params.get(str(param.name)) if typed else () if param.multiple else None
