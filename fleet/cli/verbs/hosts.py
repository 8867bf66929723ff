"""Runs `fleet hosts`: shows the inventory as fleet reads it, or as another tool's file. Needs no network."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict

import click

from fleet.cli.inventory import load_inventory, narrowed
from fleet.cli.line.command import OneOf, Verb
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import Named, without
from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean, echo, write_json, write_table
from fleet.errors import UsageError
from fleet.inventory.convert import FORMATS, report
from fleet.model import Host, Inventory
from fleet.sources import SOURCES
from fleet.sources.source import Condition

# column -> the host's value in it; a column that is empty for every host is left out
COLUMNS: dict[str, Callable[[Host], object]] = {
    "address": lambda h: h.address if h.address != h.name else "",
    "data address": lambda h: h.data_address,
    "user": lambda h: h.user,
    "port": lambda h: h.port,
    "via": lambda h: h.proxy_jump,
    "slots": lambda h: h.slots,
    "devices": lambda h: ",".join(map(str, h.devices)) if h.devices is not None else None,
    "python": lambda h: h.python,
    "workdir": lambda h: h.workdir,
}


# more columns with -v
MORE: dict[str, Callable[[Host], object]] = {
    "identity file": lambda h: h.identity_file,
    "host key": lambda h: h.host_key,
    "activate": lambda h: h.activate,
    "env": lambda h: ", ".join(h.env),
}


@click.command(
    "hosts", cls=Verb, examples=("fleet hosts", "fleet hosts -w @a100 -x gpu02 --format deepspeed > hostfile")
)
@click.option(
    "--format",
    "form",
    type=OneOf(["table", *FORMATS]),
    default="table",
    show_default=True,
    metavar="FORM",
    help=f"The form to print the hosts in: table, {', '.join(FORMATS)}.",
)
@click.option("--from", "source", type=Named(SOURCES), help="All hosts of a source, or of its PARTITION: slurm.")
@click.argument("partition", required=False)
@without("transport", "fanout", "connect_timeout", "dry_run")
def hosts(form: str, source: str | None, partition: str | None) -> int:
    """Show the hosts in node-rank order, or write them as another tool reads them.

    Needs no network. -w and -x choose, as everywhere. --from slurm asks Slurm, whose states and reasons (sinfo -R)
    are next to its nodes.
    """
    settings = settings_of()
    settings.json = settings.json or form == "json"  # so that an error is JSON too
    if partition is not None and source is None:
        raise UsageError(f"{partition}: no argument is taken but with --from", hint=f"fleet hosts -w {partition}")
    inventory, conditions = (load_inventory(), {}) if source is None else SOURCES.get(source).known(partition)
    if source is not None:
        inventory = narrowed(inventory)
    if settings.json:
        document = report(inventory).as_json()
        for name, condition in conditions.items():
            if name in document["hosts"]:
                document["hosts"][name].update(asdict(condition))
        write_json(document)
    elif form == "table":
        show(inventory, conditions)
    else:
        echo(FORMATS[form](inventory).removesuffix("\n"), wrap=False)
    return 0


def show(inventory: Inventory, conditions: Mapping[str, Condition] = {}) -> None:
    """Prints the table. On a terminal, values that are the same for all hosts are below it; in a pipe each line is one
    host."""
    groups: dict[str, str] = {}
    for group, members in inventory.groups.items():
        groups.update({name: f"{groups.get(name, '')} {group}".strip() for name in members})
    columns = {**COLUMNS, **MORE} if settings_of().verbose else COLUMNS
    if conditions:
        columns = {
            **columns,
            "state": lambda h: conditions[h.name].state,
            "reason": lambda h: conditions[h.name].reason,
        }
    rows = [
        [str(node_rank), host.name, *(_text(cell(host)) for cell in columns.values()), groups.get(host.name, "")]
        for node_rank, host in enumerate(inventory.hosts)
    ]
    once = "all hosts" if terminal.interactive(sys.stdout) else ""
    titles = ("node rank", "host", *columns, "groups")
    write_table(titles, rows, keys=2, right=("node rank", "port", "slots"), once=once)


def _text(value: object) -> str:
    return "" if value is None else clean(str(value))
