"""Runs `fleet launch [OPTIONS] SCRIPT [ARGS...]`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleet.cli.context import the_fleet
from fleet.cli.inventory import load_inventory
from fleet.cli.line.command import FleetOption, completed, one_spelling
from fleet.cli.line.hints import launching
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import Named, common_options, request_options, runs_dir_option
from fleet.cli.line.slips import with_options
from fleet.cli.line.values import patience, ranks_option, size
from fleet.cli.run.claim import on_record, requeue
from fleet.cli.run.containers import export, launch_here
from fleet.cli.run.follow import follow
from fleet.cli.run.launch_options import (
    ASKING,
    OWN,
    LaunchCommand,
    SourceOption,
    again_options,
    changed,
    earlier,
    engine_options,
    port_of,
    script_or_run,
    spelled,
    take,
    theirs,
    translate,
)
from fleet.cli.run.submit import as_before, submit, waited_for
from fleet.cli.screen.output import clean, fold, remark, write_plan
from fleet.engines import DEFAULT, ENGINES, suited
from fleet.errors import EXIT_TIMEOUT, UsageError
from fleet.model import Host
from fleet.requests.launch import ENVIRONMENT, MEANWHILE, RUNS, WHERE, Launch
from fleet.requests.runs import NAMED

if TYPE_CHECKING:
    from fleet.ops.run.find.again import Recorded

# fleet's options that few scripts have: after the script, one of them was probably meant for fleet
LIKE_OURS = {"--dry-run", "--nnodes", "--nproc-per-node", "--sync", "--detach", "--no-preflight", "--transport"}


@click.command(
    "launch",
    cls=LaunchCommand,
    context_settings={"allow_interspersed_args": False, "token_normalize_func": spelled},
    examples=(
        "fleet launch --sync train.py --lr 1e-4",
        "fleet launch --nproc-per-node 8 --env NCCL_DEBUG=INFO train.py",
        "fleet launch --engine deepspeed train.py --deepspeed_config ds.json",
        "fleet launch -m my_package.train --lr 1e-4",
        "fleet launch sft.sh",
        "fleet launch --again latest -x gpu04",
    ),
    sections=(
        RUNS,
        *(str(option.section) for option in OWN),
        WHERE,
        *(str(option.section) for option in ASKING),
        ENVIRONMENT,
        MEANWHILE,
        NAMED,
        "Once more",
    ),
)
@request_options(
    Launch,
    *("engine", "module", "no_python", "nnodes", "nproc_per_node", "master_addr", "master_port", "env", "env_expand"),
    engine={"type": Named(ENGINES)},
    master_port={"type": str, "default": "auto", "show_default": True},
)
@click.option(
    "--env-file",
    cls=FleetOption,
    section=ENVIRONMENT,
    daily=True,
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="KEY=VALUE lines.",
)
@request_options(
    Launch,
    *(
        "clean_env",
        "keep_env",
        "workdir",
        "python",
        "container",
        "container_args",
        "engine_args",
        "sync",
        "wheels",
        "force",
        "max_delete",
        "as_there",
    ),
    *("wait", "detach", "lease", "grace", "node_timeout", "max_restarts", "spares", "notify"),
    wait={"is_flag": False, "type": patience},
)
@ranks_option
@request_options(Launch, "name")
@runs_dir_option(help="Where logs go.")
@request_options(
    Launch,
    *("stall_timeout", "flight_recorder", "max_log", "sample", "share"),
    max_log={"type": size, "callback": lambda context, option, value: int(value), "default": "0"},
)
@click.option(
    "--no-preflight",
    cls=FleetOption,
    section=MEANWHILE,
    is_flag=True,
    help="Start in spite of what preflight finds.",
)
@again_options
@click.argument("script", required=False, callback=script_or_run, metavar="SCRIPT", shell_complete=completed("file"))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@engine_options
@theirs
@common_options
def launch(
    script: str | None, args: tuple[str, ...], again: str | None, from_: str | None, yes: bool, **given: Any
) -> int:
    """Start SCRIPT as ranks on all hosts, follow it, and collect every rank's logs in runs/RUN/HOST/.

    Everything after SCRIPT is the script's own. Exit: the first failing rank's code, 128+n for signal n.

    --from and --again take SCRIPT and all options from an earlier run (its id, a unique prefix, its name, 'latest');
    those given now win.
    """
    run = earlier(again, from_, yes, given)
    launching(args if script is None else [script, *args])
    if run is not None and script is None:
        script, args = run.command
    assert script is not None
    if not script:
        raise UsageError("SCRIPT is empty", hint="fleet launch train.py")
    settings, requested = settings_of(), take(given, SourceOption)
    if run is not None:
        requested = as_before(run.run, "again" if again else "from_", given["runs_dir"], requested)
    if (source := waited_for(requested)) is not None:
        begin = launch_here if settings.on == "env" else export if source.on_paper else submit
        return begin(source, script, args, given, requested)
    with on_record(given["runs_dir"]) as claims:
        code = _launch(script, args, {**given}, run, claims)
        if claims and code == EXIT_TIMEOUT:
            requeue(given["runs_dir"] / claims["claims"])
        return code


def _launch(
    script: str, args: tuple[str, ...], given: dict[str, Any], run: Recorded | None, claims: Mapping[str, Any]
) -> int:
    """Launches on hosts that are available now. claims: see on_record()."""
    settings, inventory = settings_of(), load_inventory()
    if passed := next((arg for arg in args if one_spelling(arg) in LIKE_OURS), None):
        remark(f"{passed} comes after the script, so it is passed to the script; fleet's own options come before")
    sizes = run.fitted(inventory) if run else {}
    nnodes = given["nnodes"] or sizes.get("nnodes")
    ranks = given.pop("ranks")
    hosts = inventory.hosts[: int(nnodes)] if nnodes and nnodes.isdecimal() else inventory.hosts
    translate(given, hosts)
    if hosts and not settings.dry_run:
        # printed before any question and any slow import
        once_more = f", as run {run.run}" if run else _suited(script, given)
        remark(clean(f"launching {script} on {where(hosts)}{once_more}"))
    try:
        from fleet.ops.run.launch.run import run as run_it
        from fleet.ops.run.plan.plan import plan_of

        options = {**_as_document(given), "script": script, "args": args, **claims}
        others = {**sizes, **changed(options), "script": script, "args": args}
        request = Launch.of(options) if run is None else replace(run.request(others), runs_dir=options["runs_dir"])
        fleet = the_fleet()
        made = plan_of(inventory, request, fleet.typed)
        plan = fleet.plan.do(made, run_it)
    except UsageError as error:
        error.hint = with_options(error.hint, click.get_current_context())
        raise
    if settings.dry_run:
        return write_plan(plan)
    for note in made.job.notes:
        remark(clean(note))
    if ranks.only and max(ranks.only) >= made.world.size and not made.guessed:
        remark(f"warning: --ranks: the last rank of this run is {made.world.size - 1}")
    return follow(plan, ranks)


def where(hosts: Sequence[Host]) -> str:
    """Returns "lab[01-04] (4 hosts)"."""
    return f"{fold(host.name for host in hosts)}{f' ({len(hosts)} hosts)' * (len(hosts) > 1)}"


def _as_document(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options as run.json has them."""
    from fleet.ops.run.plan.options import read_env

    own = take(given)
    port = port_of(given.pop("master_port"))
    preflight = not given.pop("no_preflight")
    env, env_expand = read_env(given.pop("env_file"), given["env"], given["env_expand"], os.environ)
    return {
        **given,
        "master_port": port,
        "env": env,
        "env_expand": env_expand,
        "preflight": preflight,
        **own,
    }


def _suited(script: str, given: dict[str, Any]) -> str:
    """Returns a short text about the engine and the options that fleet chose for this script; "" if the user chose
    them."""
    engine, options = suited(script)
    if given["engine"] or given["module"] or given["no_python"] or engine == DEFAULT:
        return ""
    chosen = {**options, **{name: given[name] for name in options if given[name]}}
    return f", as --engine {engine} {' '.join(f'--{name} {value}' for name, value in chosen.items())}"
