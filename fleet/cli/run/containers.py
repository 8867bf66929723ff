"""Runs `fleet launch --on env`, a container's part of a run, and `--on k8s`, which writes a manifest of such pods."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fleet.cli.line.command import was_typed
from fleet.cli.line.line import Settings, settings_of, the_line
from fleet.cli.run.launch_options import port_of, take
from fleet.cli.screen.output import clean, echo, write_plan
from fleet.errors import UsageError
from fleet.inventory.secret import masked
from fleet.sources.source import Source

IN_CONTAINERS = {"module", "env", "env_file", "script", "args"}  # options for containers, besides ROWS
NOT_IN_CONTAINERS = ("inventory", "hosts", "exclude", "transport")  # common options without a meaning in a container
OF_OPERATOR = {"node_rank", "master_addr", "rdzv_id"}  # an operator or the manifest gives them to each pod
IN_MANIFEST = {"nnodes", "nproc_per_node", "master_port", "max_restarts", "container", "engine"}  # in the manifest


def typed_for(on: str, given: Mapping[str, Any], known: set[str], unknown: Sequence[str] = ()) -> set[str]:
    """Returns the typed options that are in `known`. Raises UsageError for one that has no meaning with this source."""
    ctx, settings = click.get_current_context(), settings_of()
    flags = {str(it.name): max(it.opts, key=len) for it in ctx.command.params}
    typed = {name for name in (*given, "again", "from_", "yes") if was_typed(ctx, name)}
    common = [name for name in NOT_IN_CONTAINERS if getattr(settings, name) != getattr(Settings(), name)]
    for name in [*common, *unknown, *sorted(typed - known - IN_CONTAINERS)]:
        option = flags.get(name, f"--{name}")
        raise UsageError(f"{option} has no meaning with --on {on}", hint=f"leave out {option}")
    return typed & known


def launch_here(
    source: Source, script: str, args: Sequence[str], given: dict[str, Any], requested: Mapping[str, Any]
) -> int:
    """Runs this container's part of a run that a platform starts in all containers. Returns the exit code. Raises
    UsageError for an option that has no meaning here. requested: the options that only --on env has."""
    from fleet.node.container.explain import show
    from fleet.node.container.main import run_here
    from fleet.node.container.options import GIVEN_AS, ROWS, field, of
    from fleet.ops.run.plan.options import read_env

    settings, own = settings_of(), take(given)
    typed = typed_for(source.name, given, set(map(field, ROWS)), ["json"] * (settings.json and not settings.dry_run))
    options = {name: given[name] for name in typed} | dict(requested)
    options |= {name: str(options[name]) for name in GIVEN_AS if name in options}
    if settings.dry_run:
        place = {name: options[name] for name in GIVEN_AS if name in options}
        return show(place, options.get("platform"), settings.json, [*["-m"] * given["module"], script, *args])
    options["env"] = read_env(given["env_file"], given["env"], (), os.environ)[0]
    options["runs_dir"] = str(given["runs_dir"])
    options |= {"module": given["module"], "engine_options": {name.replace("_", "-"): own[name] for name in own}}
    if isinstance(options.get("wait"), bool):  # without a time, the default of --wait holds
        del options["wait"]
    return run_here(of(options, script, args))


def export(
    source: Source, script: str, args: Sequence[str], given: dict[str, Any], requested: Mapping[str, Any]
) -> int:
    """Writes the manifest of a run on stdout, and on stderr the commands that apply it. Nothing is applied."""
    from fleet.engines import DEFAULT, check
    from fleet.node.container.options import ROWS, field
    from fleet.ops.run.plan.options import id_of, job_of, read_env
    from fleet.ops.run.submit.manifest import plan_of
    from fleet.requests.launch import Launch
    from fleet.requests.manifest import FOLDER, Manifest

    settings, taken = settings_of(), take(given)
    names = {field(name): name for name in ROWS}
    typed = typed_for(source.name, given, {*names, "container"} - OF_OPERATOR)
    if not given["container"]:
        raise UsageError("--on k8s takes the image of its pods", hint="--container registry/team/train:1")
    same = {name: given[name] for name in ("module", "engine", "engine_args", "name", "container", "nproc_per_node")}
    size = Launch(script=script, args=args, nnodes=given["nnodes"] or 1, options=taken, **same)
    check(job := job_of(size))
    ranks = size.ranks or (size.counted if size.counted == "cpu" else None)
    if size.least or ranks is None:
        wrong = f"--nnodes {size.nnodes}" if size.least else f"--nproc-per-node {size.nproc_per_node or 'is missing'}"
        hint = "--nnodes 4" if size.least else "--nproc-per-node 8 requests 8 GPUs for each pod, cpu none"
        raise UsageError(f"{wrong}: a manifest has numbers", hint=hint)
    values = read_env(given["env_file"], given["env"], (), os.environ)[0]
    how = {item.partition("=")[0]: "=" in item for item in given["env"]}
    options, own = [f"--engine={job.engine}"] * (job.engine != DEFAULT), job.engine_options
    options += [
        f"--{names[name]}={each}" for name in sorted(typed - IN_MANIFEST - {"env"}) for each in _each(given[name])
    ]
    options += [f"--{name}{'' if own[name] is True else f'={own[name]}'}" for name in own]
    request = Manifest(
        kind=requested.get("as", "jobset"),
        run=id_of(size),
        command=["python3", f"{FOLDER}/fleet.pyz"],
        container=given["container"],
        args=[*options, *["-m"] * given["module"], script, *args],
        nnodes=size.most or 1,
        ranks=ranks,
        port=port_of(given["master_port"]),
        env={name: values[name] for name in values if how.get(name)},
        secret=[name for name in values if not how.get(name)],
        max_restarts=given["max_restarts"],
        grace=given["grace"],
        **{name: requested[name] for name in requested if name != "as"},
    )
    plan = plan_of(request, given["env_file"], [name for name in how if not how[name]])
    if not settings.dry_run:
        argv = [*the_line().typed[:1], "--dry-run", *the_line().typed[1:]]
        hint = shlex.join(argv) if masked(argv) == argv else "give --dry-run, too"
        raise UsageError("--on k8s starts nothing: it writes a manifest", hint=hint)
    file = os.path.realpath("/proc/self/fd/1")
    steps = dict(plan.steps(file if os.path.isfile(file) else f"{request.name}.yaml"))
    if settings.json:
        return write_plan(plan, manifest=plan.objects, steps=steps)
    for line in plan.text.splitlines():
        echo(line, wrap=False)
    for what, lines in steps.items() if not settings.quiet else ():
        echo(f"to {what} it:", err=True)
        for line in lines:
            echo(f"  {clean(line)}", err=True, wrap=False)
    return 0


def _each(value: Any) -> Sequence[Any]:
    """Returns the values of an option; no value for a --wait without a time, because the pods have a default for it."""
    return value if isinstance(value, tuple) else [value] * (not isinstance(value, bool))
