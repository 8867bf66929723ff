"""Runs `fleet init [FILE]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from fleet.answers.hosts import Proposed
from fleet.cli.context import CliFleet
from fleet.cli.line.command import Verb, completed
from fleet.cli.line.hints import as_typed
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import request_options, without
from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean, echo, inform, remark, write_failures, write_json, write_plan, write_table
from fleet.cli.verbs.setup_ssh import Remarks, answer, confirm
from fleet.errors import UsageError
from fleet.inventory.find import DEFAULT_FILES, LAB, VARIABLE, decode, is_yaml, read
from fleet.inventory.yaml_file import parse_yaml
from fleet.ops import init as op
from fleet.ops.init.choose import difference
from fleet.ops.init.sources import Given, of_ssh_config
from fleet.ops.init.sources import read as read_source
from fleet.ops.setup_ssh import SetupRuntime
from fleet.requests.hosts import SetupSsh
from fleet.rules.units import counted

PASTE = "paste the lines, then Ctrl-D: ssh root@203.0.113.10 -p 33021"


@click.command("init", cls=Verb, examples=("fleet init", "fleet init hostfile", "fleet init -"))
@request_options(SetupSsh, "tofu")
@click.option("-y", "--yes", is_flag=True, help="Write it without asking.")
@click.argument("source", metavar="[FILE]", required=False, shell_complete=completed("file"))
@without(refused={"transport": "it speaks SSH itself, as setup-ssh does; what it writes serves every transport"})
def init(source: str | None, tofu: bool, yes: bool) -> int:
    """Write ./fleet.yaml, or the -i FILE: hosts with the interpreter that has torch, GPUs, and the addresses at which
    they reach each other.

    FILE: a hostfile, an ssh config, an inventory, or lines 'ssh root@IP -p PORT'; '-': stdin. Without it: the
    inventory that is there, ./hostfile, or the hosts of ~/.ssh/config. What is in an inventory stays, comments
    too; what is missing is shown, and written when you agree.
    """
    settings = settings_of()
    path, old = target(settings.inventory)
    plan = op.plan(
        path,
        old,
        given(source, path, old, settings.hosts is not None or yes or settings.dry_run),
        hosts=settings.hosts,
        exclude=settings.exclude,
        folder=str(Path.cwd()),
        python=f"{os.environ.get('VIRTUAL_ENV') or os.environ.get('CONDA_PREFIX') or sys.prefix}/bin/python",
        connect_timeout=settings.connect_timeout,
        tofu=tofu,
    )
    if settings.dry_run:
        return write_plan(plan)
    op.try_to_write(plan)
    quiet = settings.silent
    for note in plan.notes:
        remark(clean(note))
    fleet = CliFleet(plan.inventory, plan.inventory, fanout=settings.fanout, connect_timeout=settings.connect_timeout)
    with Remarks() as emit:
        found = fleet.run(
            lambda r: op.run(plan, SetupRuntime(r.transport, r.fanout, r.emit, r.cancel, confirm=confirm)), emit
        )
    if not quiet:
        show(found)
    written = agree(plan, found, yes)
    if written:
        assert found.text is not None
        op.write(plan, found.text)
    return finish(plan, found, written)


def target(inventory: str | None) -> tuple[Path, str | None]:
    """Returns (the inventory's path, its present text); the text is None if there is no such file. Raises UsageError
    for an inventory that init cannot write."""
    named = inventory or os.environ.get(VARIABLE) or DEFAULT_FILES[0]
    if named == LAB:
        raise UsageError("the lab writes its own inventory", hint="'fleet init -i fleet.yaml' writes one of yours")
    path = Path(named).expanduser()
    if not path.exists():
        return path, None
    text = decode(read(path, named), named)
    if not is_yaml(text, named):
        raise UsageError(f"{named} is a hostfile, fleet init writes YAML", hint=f"fleet -i fleet.yaml init {named}")
    return path, text


def given(source: str | None, path: Path, old: str | None, chosen: bool) -> Given:
    """Returns the hosts that the user means. chosen: True if the user is not asked whether all hosts of ~/.ssh/config
    are meant."""
    there = parse_yaml(old, str(path)) if old else None
    if source == "-":
        if terminal.interactive(sys.stdin):
            inform(PASTE)
        return read_source(sys.stdin.buffer.read(), "<stdin>", there, Path.home())
    hostfile = DEFAULT_FILES[1]
    if source is None and there is None and Path(hostfile).exists():  # fleet would read it as the inventory
        inform(f"the hosts of ./{hostfile}")
        source = hostfile
    if source is not None:
        return read_source(read(Path(source).expanduser(), source), source, there, Path.home())
    if there is not None:
        return Given(there)
    found = of_ssh_config(Path.home())
    names = found.inventory.names
    if not chosen:
        inform(f"{found.inventory.source} names {counted(len(names), 'host')}: {clean(', '.join(names))}")
        reply = answer(lambda width: [f"All of them, for {path}? [y/N] "])
        if reply not in ("y", "yes"):
            raise UsageError(
                "which hosts are meant?" if reply is None else "nothing was written",
                hint=f"'fleet init -w {names[0]}' takes some, 'fleet init -y' all, 'fleet init -' pasted ssh lines",
            )
    return found


def show(found: op.Proposal) -> None:
    """Prints what was found, a line for each host."""
    titles = list(next(iter(found.rows.values())))
    rows = [[clean(row[title]) for title in titles] for row in found.rows.values()]
    write_table(titles, rows, keys=2, right=("slots",), once="all hosts")


def agree(plan: op.InitPlan, found: op.Proposal, yes: bool) -> bool:
    """Returns whether the inventory is to be written. An existing file is changed only after its diff was shown."""
    if found.text is None or found.text == plan.old:
        return False
    if plan.old is None or yes:
        return True
    changes = [clean(line) for line in difference(plan.path, plan.old, found.text)]
    if not settings_of().json:
        for line in changes:
            echo(line, wrap=False)
    reply = None if settings_of().json else answer(lambda width: [f"Change {plan.path}? [y/N] "])
    if reply is None:
        raise UsageError(f"{plan.path} exists already, and no user can be asked", hint="--yes changes it")
    return reply in ("y", "yes")


def finish(plan: op.InitPlan, found: op.Proposal, written: bool) -> int:
    """Prints the report and the next commands. Returns the exit code."""
    settings = settings_of()
    if settings.json:
        write_json({**found.as_json(), "written": written})
        return found.exit_code
    write_failures(found)
    if found.text is None:
        inform(f"{plan.path} was not written: no host answered")
    elif not settings.quiet:
        what = "written" if written else "has all of it" if found.text == plan.old else "left as it is"
        inform(clean(f"{plan.path}: {what}"))
        first, second = DEFAULT_FILES
        if written and plan.old is None and str(plan.path) == first and Path(second).exists():
            inform(f"from now on fleet reads ./{first} here, and no more ./{second}; that is -i {second}")
        echo("next:")
        for command in found.read(Proposed).next:
            echo(f"  {as_typed(command, selection=False)}")
    return found.exit_code
