"""Runs `fleet ssh HOST [CMD...]` and `fleet forward HOST PORT[:LOCAL]`."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress

import click

from fleet.cli.context import interruptible
from fleet.cli.inventory import load_all_hosts
from fleet.cli.line.command import Verb, completed
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import without
from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean, remark, write_planned
from fleet.errors import UsageError
from fleet.model import Inventory

HOST = click.argument("host", shell_complete=completed("host"))
ONE_HOST = without("hosts", "exclude", "transport", "fanout", "json")


def _all_hosts(verb: str) -> Inventory:
    """Returns all hosts. Raises UsageError with --json: a session has no JSON document."""
    if settings_of().json and not settings_of().dry_run:
        raise UsageError(f"{verb} takes no --json", hint="of a command: fleet exec --json -- hostname")
    return load_all_hosts()


@click.command(
    "ssh",
    cls=Verb,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    examples=("fleet ssh gpu01", "fleet ssh gpu01 nvidia-smi"),
)
@HOST
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@ONE_HOST
def ssh(host: str, command: tuple[str, ...]) -> int:
    """A shell on HOST in this terminal, or COMMAND, as ssh runs it: by this machine's ssh, with the inventory's user,
    port, key and gateway, its host key verified.

    Exit: the command's.
    """
    from fleet.ops import shell

    settings, all_hosts = settings_of(), _all_hosts("ssh")
    chosen = shell.one_host(all_hosts, host)
    if settings.dry_run:
        what = shlex.join(command) or "a shell"
        return write_planned("ssh", [chosen.name], {"command": command}, lambda: [f"{chosen.name}: {what}"])
    options = ["-t"] if not command and terminal.interactive(sys.stdin) else []
    with shell.connected(chosen, all_hosts, settings.connect_timeout) as session:
        return shell.shell(session, options, command[1:] if command[:1] == ("--",) else command)


@click.command("forward", cls=Verb, examples=("fleet forward gpu01 6006", "fleet forward gpu01 8888:18888"))
@HOST
@click.argument("port", metavar="PORT[:LOCAL]")
@ONE_HOST
def forward(host: str, port: str) -> int:
    """A port of HOST, on its loopback, as one of this machine: TensorBoard, a notebook. LOCAL: another number here.
    Ctrl-C ends it.
    """
    from fleet.ops import shell

    settings, all_hosts = settings_of(), _all_hosts("forward")
    chosen, way = shell.one_host(all_hosts, host), shell.Forward.of(port)
    text = f"{shell.LOOPBACK}:{way.local} here is port {way.port} of {chosen.name}"
    if settings.dry_run:
        plan = {"port": way.port, "local": way.local}
        return write_planned("forward", [chosen.name], plan, lambda: [text])
    way.check(chosen)
    with shell.connected(chosen, all_hosts, settings.connect_timeout) as session, interruptible():
        remark(clean(f"{text}; Ctrl-C ends it"))
        with suppress(KeyboardInterrupt):
            shell.forward(session, way)
    return 0
