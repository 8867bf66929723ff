"""`fleet launch [OPTIONS] SCRIPT [ARGS...]`"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fleet.cli.context import the_fleet
from fleet.cli.inventory import load_inventory
from fleet.cli.line.command import completed, one_spelling
from fleet.cli.line.hints import launching
from fleet.cli.line.launchers import spelled, theirs, translate
from fleet.cli.line.options import TYPED, Limited, Named, common_options, runs_dir_option, settings_of
from fleet.cli.line.slips import with_options
from fleet.cli.line.values import ranks_option, size
from fleet.cli.run.follow import follow
from fleet.cli.run.launch_options import (
    ASKED,
    OWN,
    LaunchCommand,
    SourceOption,
    again_options,
    changed,
    earlier,
    engine_options,
    script_or_run,
    sections,
    take,
)
from fleet.cli.run.submit import as_before, claimed, submit, waited_for
from fleet.cli.screen import plans
from fleet.cli.screen.output import clean, fold, talk
from fleet.engines import DEFAULT, ENGINES, suited
from fleet.errors import UsageError
from fleet.model import Host
from fleet.requests.launch import Launch

# options of fleet's that a script hardly has
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
    sections={
        "What runs": [
            "engine",
            "module",
            "no_python",
            "python",
            "workdir",
            "sync",
            "force",
            "max_delete",
            "as_there",
            "engine_args",
        ],
        **sections(OWN),
        "Where, and how many": ["nnodes", "spares", "nproc_per_node", "master_addr", "master_port"],
        **ASKED,
        "Environment": ["env", "env_expand", "env_file", "clean_env", "keep_env"],
        "While it runs": [
            "max_restarts",
            "ranks",
            "detach",
            "lease",
            "grace",
            "node_timeout",
            "stall_timeout",
            "max_log",
            "share",
            "no_preflight",
        ],
        "Name and logs": ["name", "runs_dir"],
        "Once more": ["from_", "again", "yes"],
    },
)
@click.option(
    "--engine",
    type=Named(ENGINES),
    help=f"What starts the ranks on a node [{DEFAULT}; a shell script: command].",
)
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module's name, as behind python -m.")
@click.option("--no-python", is_flag=True, help="SCRIPT is a program, which the engine starts as it is.")
@click.option(
    "--nnodes",
    metavar="N|MIN:MAX",
    help="Only the first N hosts; of MIN:MAX torchrun goes on while MIN are left, and takes others back.",
)
@click.option("--nproc-per-node", metavar="N|auto|gpu|cpu", help="Ranks a node [the host's slots].")
@click.option("--master-addr", metavar="ADDR", help="Where ranks meet [node 0's data address].")
@click.option("--master-port", metavar="PORT|auto", default="auto", show_default=True, help="Its port.")
@click.option("--env", multiple=True, metavar="K=V|K", help="Set K to V, or to its value here.")
@click.option("--env-expand", multiple=True, metavar="K=V", help="Set K to V with $NAMEs expanded on the node.")
@click.option("--env-file", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="KEY=VALUE lines.")
@click.option("--clean-env", is_flag=True, help="Ranks see nothing of SLURM_*, PMI_*, OMPI_* and the like.")
@click.option("--keep-env", multiple=True, metavar="NAME", help="With --clean-env: but this one.")
@click.option("--workdir", metavar="DIR", help="Folder on the nodes [the host's workdir, else this folder's path].")
@click.option("--python", metavar="PATH", help="Training interpreter on the nodes [the host's python, else python3].")
@click.option(
    "--engine-arg",
    "engine_args",
    multiple=True,
    metavar="ARG",
    help="An option of the engine's own; write --engine-arg=--OPTION.",
)
@click.option("--sync", is_flag=True, help="Mirror this folder to the nodes' workdir first.")
@click.option("--force", is_flag=True, help="With --sync: replace what a sync of another folder put there, too.")
@click.option(
    "--max-delete",
    type=Limited(Launch, "max_delete", int),
    metavar="N|all",
    help="With --sync: delete up to N files on a host, or all; without, not most of what is there.",
)
@click.option("--as-there", is_flag=True, help="Run SCRIPT as the nodes have it, though it is another project's.")
@click.option("--detach", is_flag=True, help="Once it runs, leave it to itself: it needs no head.")
@click.option(
    "--lease",
    type=Limited(Launch, "lease"),
    default=Launch.lease,
    metavar="S",
    show_default=True,
    help="Seconds that nodes go on without this command.",
)
@click.option(
    "--grace",
    type=Limited(Launch, "grace"),
    metavar="S",
    help="Seconds between SIGTERM and SIGKILL [30 of a stop that was asked for, 10 after a failure].",
)
@click.option(
    "--node-timeout",
    type=Limited(Launch, "node_timeout"),
    default=Launch.node_timeout,
    metavar="S",
    show_default=True,
    help="Seconds of silence after which a node is lost.",
)
@click.option(
    "--max-restarts",
    type=Limited(Launch, "max_restarts", int),
    default=Launch.max_restarts,
    metavar="N",
    help="Restarts of all ranks after a failure.",
)
@click.option(
    "--spares",
    type=Limited(Launch, "spares", int),
    default=Launch.spares,
    metavar="N",
    help="N hosts stand by to take lost ones' places.",
)
@ranks_option
@click.option("--name", metavar="NAME", help="The run's name [the script's].")
@runs_dir_option("Where logs go.")
@click.option(
    "--stall-timeout",
    type=Limited(Launch, "stall_timeout"),
    metavar="S",
    help="End the run, with its stacks, when no rank has written anything for S seconds [never].",
)
@click.option(
    "--max-log",
    type=size,
    callback=lambda context, option, value: int(value),
    default="0",
    metavar="SIZE",
    help="Nodes keep so much of a log that is here [all].",
)
@click.option("--share", is_flag=True, help="Start also where another run is live.")
@click.option("--no-preflight", is_flag=True, help="Start in spite of what preflight finds.")
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

    Everything behind SCRIPT is the script's own. Exit: the first failing rank's code, 128+n for signal n.

    --from and --again take SCRIPT and all options from an earlier run (its id, a unique prefix, its name, 'latest');
    those given now win.
    """
    run = earlier(again, from_, yes, given)
    launching(click.get_current_context().find_root().meta.get(TYPED, ()), args if script is None else [script, *args])
    if run is not None and script is None:
        script, args = run.command
    assert script is not None
    if not script:
        raise UsageError("SCRIPT is empty", hint="fleet launch train.py")
    settings, asked = settings_of(), take(given, SourceOption)
    if settings.on == "env":
        from fleet.cli.run.container import launch_here

        return launch_here(script, args, given, asked)
    if run is not None:
        asked = as_before(run.run, "again" if again else "from_", given["runs_dir"], asked)
    if (source := waited_for(asked)) is not None:
        return submit(source, script, args, given, asked)
    inventory = load_inventory()
    if not settings.silent and (passed := next((word for word in args if one_spelling(word) in LIKE_OURS), None)):
        talk(f"{passed} stands behind the script, so the script is given it; fleet's own options stand before")
    sizes = run.fitted(inventory) if run else {}
    nnodes = given["nnodes"] or sizes.get("nnodes")
    ranks = given.pop("ranks")
    hosts = inventory.hosts[: int(nnodes)] if nnodes and nnodes.isdecimal() else inventory.hosts
    translate(given, hosts)
    if hosts and not (settings.dry_run or settings.silent):
        # before anything is asked, or even imported, that takes its time
        once_more = f", as run {run.run}" if run else _suited(script, given)
        talk(clean(f"launching {script} on {where(hosts)}{once_more}"))
    try:
        from fleet.ops.run.launch.run import run as run_it
        from fleet.ops.run.plan.plan import plan_of

        options = {**_as_document(given), "script": script, "args": args, **claimed(given["runs_dir"])}
        others = {**sizes, **changed(options), "script": script, "args": args}
        request = Launch.of(options) if run is None else replace(run.request(others), runs_dir=options["runs_dir"])
        fleet = the_fleet()
        made = plan_of(inventory, request, fleet.typed)
        plan = fleet.plan.do(made, run_it)
    except UsageError as error:
        error.hint = with_options(error.hint, click.get_current_context())
        raise
    if settings.dry_run:
        return plans.tell(plan)
    if not settings.silent:
        for note in made.job.notes:
            talk(clean(note))
        if ranks.only and max(ranks.only) >= made.world.size and not made.guessed:
            talk(f"warning: --ranks: the last rank of this run is {made.world.size - 1}")
    return follow(plan, ranks)


def where(hosts: Sequence[Host]) -> str:
    """ "lab[01-04] (4 hosts)"."""
    return f"{fold(host.name for host in hosts)}{f' ({len(hosts)} hosts)' * (len(hosts) > 1)}"


def _as_document(given: dict[str, Any]) -> dict[str, Any]:
    """The options as run.json has them."""
    from fleet.ops.run.plan.options import read_env

    own = take(given)
    port = given.pop("master_port")
    if port != "auto" and not (port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536):
        raise UsageError(f"--master-port {port}: not a port", hint="1 to 65535, or auto")
    preflight = not given.pop("no_preflight")
    env, env_expand = read_env(given.pop("env_file"), given["env"], given["env_expand"], os.environ)
    return {
        **given,
        "master_port": 0 if port == "auto" else int(port),
        "env": env,
        "env_expand": env_expand,
        "preflight": preflight,
        **own,
    }


def _suited(script: str, given: dict[str, Any]) -> str:
    """What is chosen for this script, in a word."""
    engine, options = suited(script)
    if given["engine"] or given["module"] or given["no_python"] or engine == DEFAULT:
        return ""
    words = {**options, **{name: given[name] for name in options if given[name]}}
    return f", as --engine {engine} {' '.join(f'--{name} {value}' for name, value in words.items())}"
