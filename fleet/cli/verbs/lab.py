"""Runs `fleet lab up [N] | down | status | cut | heal | freeze | kill | link`."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fleet.cli.line.command import VerbGroup, completed
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import without
from fleet.cli.screen.output import (
    clean,
    detail,
    echo,
    fold,
    inform,
    remark,
    write_json,
    write_planned,
    write_report,
    write_table,
)
from fleet.cli.verbs.setup_ssh import answer
from fleet.errors import EXIT_OK, UsageError
from fleet.model import Report, Result

MANY, HOST_MIB = 32, 9  # so many new hosts need no consent; memory of a host

if TYPE_CHECKING:
    from fleet.lab.lab import Lab
    from fleet.lab.state import State


# options about an inventory have no meaning here; the lab's hosts are arguments
_NAMED = dict.fromkeys(("hosts", "exclude"), "hosts of the lab come after the command: fleet lab kill lab02")
lab_options = without("inventory", "on", "transport", "fanout", "connect_timeout", refused=_NAMED)


def the_lab() -> Lab:
    from fleet.lab.lab import Lab

    lab = Lab()
    detail(clean(f"lab {lab.folder.lab_name}, in {lab.folder.path}"))
    return lab


def document(lab: Lab, state: State) -> dict[str, Any]:
    """Returns the document of `up --json` and `status --json`. pid: the host's first process; None if it is off."""
    hosts = {
        name: {
            "address": machine.address,
            "pid": machine.pid if state.up and machine.up else None,
            "up": state.up and machine.up,
        }
        for name, machine in state.hosts.items()
    }
    return {
        "state_dir": str(lab.folder.path),
        "inventory": str(lab.folder.inventory),
        "password_file": str(lab.folder.password_file),
        "hosts": hosts,
    }


@click.group("lab", cls=VerbGroup, examples=("fleet lab up 4", "fleet lab cut lab02", "fleet lab down"))
@lab_options
def lab() -> None:
    """Virtual hosts on this machine, each with a real sshd, to rehearse on. Needs Linux and root.

    $FLEET_LAB names the lab ("lab"); several may be up at once.
    """


def ended(hosts: Sequence[str], text: str) -> int:
    """Reports a finished action on the lab: with --json its document, else its text."""
    report = Report("lab", tuple(Result(name, ok=True) for name in hosts), EXIT_OK)
    return write_report(report, lambda _: inform(text))


@lab.command(examples=("fleet lab up 4", "fleet lab up 8 --link 200mbit"))
@click.argument("count", metavar="[N]", type=int, required=False)
@click.option("--link", metavar="RATE", help="Limit every link, both ways: 200mbit; none.")
@click.option("--disk", metavar="SIZE", help="What a host may write, in memory: 512m [half of memory].")
@click.option(
    "--slurm", is_flag=True, help="With Slurm (Debian's slurm-wlm, munge): srun, salloc, sbatch on every host."
)
@lab_options
def up(count: int | None, link: str | None, disk: str | None, slurm: bool) -> int:
    """Bring up N hosts [4].

    Starts those that are off; with a larger N than before, adds hosts.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cleans up as Ctrl-C does
    the = the_lab()
    folder = the.folder
    if settings_of().dry_run:
        number = count or len(the.folder.load().hosts) or 4
        lines = [f"would bring up {number} hosts, under {folder.path}"]
        return write_planned("lab", (), {"up": number, "state_dir": str(folder.path)}, lambda: lines)
    if count is not None and count - len(the.folder.load().hosts) > MANY:
        agree_to(count)
    state = the.up(count, link, disk, slurm)
    if settings_of().json:
        write_json(document(the, state))
    elif not settings_of().quiet:
        again = "" if folder.lab_name == "lab" else f"FLEET_LAB={folder.lab_name} "
        commands = (
            f"fleet -i lab setup-ssh --tofu --password-file {shlex.quote(str(folder.password_file))}",
            "fleet -i lab exec -- hostname",
            *[f"fleet -i lab ssh {next(iter(state.hosts))}"] * the.has_slurm,
            "fleet lab down",
        )
        echo(f"{len(state.hosts)} hosts are up: {fold(state.hosts)}, root's password in {folder.password_file}")
        echo(f"inventory: {folder.inventory}")
        echo("next:")
        for command in commands:
            echo(f"  {again}{command}")
    return EXIT_OK


def agree_to(count: int) -> None:
    """Prints what so many hosts cost. Raises UsageError if the user refuses."""
    cost = f"{count} hosts take {count * HOST_MIB} MiB of memory, and each rank with torch 300 MiB more"
    remark(f"{cost}; they share {os.cpu_count()} CPUs")
    reply = None if settings_of().silent else answer(lambda width: [f"Bring up {count}? [y/N] "])
    if reply not in (None, "y", "yes"):
        raise UsageError("nothing was started", hint=f"fleet lab up {MANY}")


@lab.command(examples=("fleet lab down", "fleet lab down --dry-run"))
@lab_options
def down() -> int:
    """End the lab and everything in it."""
    the = the_lab()
    path = str(the.folder.path)
    if settings_of().dry_run:
        return write_planned(
            "lab", the.folder.load().hosts, {"down": path}, lambda: [f"would end the lab under {path}"]
        )
    the.down()
    return ended((), f"lab {the.folder.lab_name} is down")


@lab.command(examples=("fleet lab status", "fleet lab status --json"))
@lab_options
def status() -> int:
    """Show the hosts: address, first process, up, cut, frozen or off."""
    the = the_lab()
    state = the.folder.load()
    if settings_of().json:
        write_json(document(the, state))
    elif not state.hosts:
        echo(f"lab {the.folder.lab_name} is not up")
    else:
        rows = []
        for name, how in the.conditions(state).items():
            machine = state.hosts[name]
            pid = "-" if how == "off" else str(machine.pid)
            link = machine.link or state.link or "none"
            rows.append((name, machine.address, pid, "" if link == "none" else link, how))
        write_table(("host", "address", "pid", "link", "state"), rows, right=("pid",))
    return EXIT_OK


def on_hosts(nodes: Sequence[str], done: str, act: Callable[[Lab], Sequence[str]]) -> int:
    """Acts on the hosts of a node set, and reports it: "lab01: cut off". done: the text for what was done to them."""
    from fleet.lab.state import select

    the = the_lab()
    if settings_of().dry_run:
        meant = select(the.folder.load(), nodes)
        return write_planned("lab", meant, done, lambda: [f"{fold(meant)}: would be {done}"])
    chosen = act(the)
    return ended(chosen, f"{fold(chosen)}: {done}")


def _state(verb: str, done: str, text: str) -> None:
    """Adds a command that puts hosts into a state. done: the text that reports it."""

    @lab.command(verb, help=text, examples=(f"fleet lab {verb} lab02", f"fleet lab {verb} 'lab[02-03]'"))
    @click.argument("nodes", metavar="HOST...", nargs=-1, required=True, shell_complete=completed("lab_host"))
    @lab_options
    def command(nodes: tuple[str, ...]) -> int:
        return on_hosts(nodes, done, lambda the: getattr(the, verb)(nodes))


_state("cut", "cut off", "Pull the network cable of hosts (a node set).")
_state("heal", "healed", "Undo cut and freeze.")
_state("freeze", "frozen", "Stop every process of hosts; they still accept connections.")
_state("kill", "off", "Power hosts off. `fleet lab up` starts them again, as new, with their old host keys.")


@lab.command(examples=("fleet lab link lab02 20mbit", "fleet lab link lab02 none"))
@click.argument("nodes", metavar="HOST...", nargs=-1, required=True, shell_complete=completed("lab_host"))
@click.argument("rate", metavar="RATE")
@lab_options
def link(nodes: tuple[str, ...], rate: str) -> int:
    """Limit the links of hosts, both ways: 20mbit; 'none' lifts it."""
    return on_hosts(nodes, "unlimited" if rate == "none" else f"limited to {rate}", lambda the: the.link(nodes, rate))
