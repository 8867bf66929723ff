"""Takes the options of other launchers that mean the same, or nearly, on `fleet launch`: fleet/engines/launchers.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from fleet.cli.line.command import F, one_spelling
from fleet.engines.launchers import SAME
from fleet.engines.translate import endpoint as parts_of
from fleet.errors import UsageError
from fleet.model import Host


def spelled(token: str) -> str:
    """An option, with or without its dashes, as `fleet launch` calls it."""
    name = one_spelling(token)
    bare = name.lstrip("-")
    return name.removesuffix(bare) + SAME.get(bare, bare)


def theirs(command: F) -> F:
    """Decorator: adds the options of theirs whose values fleet has in another form; see translate()."""
    for option, metavar in (("--rdzv-endpoint", "ADDR[:PORT]"), ("--num-processes", "N")):
        command = click.option(option, metavar=metavar, hidden=True, help=f"See {__name__}.")(command)
    return command


def translate(given: dict[str, Any], hosts: Sequence[Host]) -> None:
    """Makes of those what fleet calls them. hosts: those of the run."""
    endpoint, total = given.pop("rdzv_endpoint"), given.pop("num_processes")
    if endpoint is not None:
        address, port = parts_of(endpoint)
        _put(given, "--rdzv-endpoint", "master_addr", address)
        if port is not None:
            _put(given, "--rdzv-endpoint", "master_port", port)
    if total is not None:
        _put(given, "--num-processes", "nproc_per_node", _each(total, hosts))


def _put(given: dict[str, Any], option: str, name: str, value: str | None) -> None:
    fleets = f"--{name.replace('_', '-')}"
    if given[name] not in (None, "auto", value):
        raise UsageError(f"{option} and {fleets} say different things", hint="leave one of the two away")
    given[name] = value or given[name]


def _each(total: str, hosts: Sequence[Host]) -> str | None:
    """Ranks on each host, of `total` on all of them, as accelerate counts; None where the inventory's slots add up."""
    slots = sum(host.slots or 0 for host in hosts)
    if not total.isdecimal() or not int(total) or not hosts or (int(total) != slots and int(total) % len(hosts)):
        raise UsageError(
            f"--num-processes {total}: cannot be shared out to {len(hosts)} hosts evenly",
            hint="--nproc-per-node N for each host, or 'slots' in the inventory",
        )
    return None if int(total) == slots else str(int(total) // len(hosts))
