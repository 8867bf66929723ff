"""Holds the command line that runs: its argv, the values of its common options, and what was found out about it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import click

from fleet.errors import FleetError
from fleet.model import Inventory
from fleet.requests.request import Reach, option
from fleet.sources import INVENTORY, SOURCES
from fleet.transport import DEFAULT, TRANSPORTS


@dataclass
class Settings:
    """Holds the values of the common options. It is the `obj` of a line's click contexts."""

    inventory: str | None = option(
        None,
        "Inventory file, or 'lab' for the lab's.",
        *("-i", "--inventory"),
        metavar="FILE",
        completes="inventory_file",
        daily=True,
    )
    on: str = option(
        INVENTORY,
        "Where hosts come from: an inventory, or the Slurm allocation that this is in.",
        metavar=f"[{'|'.join((INVENTORY, *SOURCES.own))}]",
        daily=True,
    )
    hosts: str | None = option(
        None,
        "Only these hosts: gpu[01-04], 10.0.0.1, @group, gpu1:0,2, ^FILE, -, @failed, @unfit.",
        *("-w", "--hosts"),
        metavar="NODESET",
        completes="nodeset",
        daily=True,
    )
    exclude: str | None = option(
        None, "Not these hosts.", "-x", "--exclude", metavar="NODESET", completes="nodeset", daily=True
    )
    transport: str = option(
        DEFAULT,
        "How hosts are reached: 'openssh', 'pdsh': by this machine's own; 'local' runs everything here.",
        metavar=f"[{'|'.join(TRANSPORTS.own)}]",  # without those of other packages, which take long to look up
    )
    fanout: int = Reach.fanout
    connect_timeout: float = Reach.connect_timeout
    dry_run: bool = option(False, "Show the plan, do nothing.", daily=True)
    json: bool = option(False, "JSON on stdout: one document; of a run, a line an event.")
    verbose: int = option(0, "Say more.", "-v", "--verbose")
    quiet: bool = option(False, "Print only what went wrong.", "-q", "--quiet")

    @property
    def silent(self) -> bool:
        """Returns whether only the requested output is printed."""
        return self.quiet or self.json


@dataclass
class Line:
    """Holds a command line that runs. A process runs one line at a time; each step of a playbook is a line of its own.

    typed: the argv, with "fleet". group: the click group that parses it. by_itself: a user typed it; it is no step of a
    playbook. command: the verb, once it runs. inventory: the whole inventory, once it is read. none_live: all hosts
    reported that no run is live. launch: (argv before the script, the script and after) of a launch that runs."""

    typed: tuple[str, ...] = ()
    group: click.Group | None = None
    settings: Settings = field(default_factory=Settings)
    by_itself: bool = False
    command: click.Command | None = None
    inventory: Inventory | None = None
    none_live: bool = False
    launch: tuple[Sequence[str], Sequence[str]] | None = None

    @property
    def verb(self) -> str:
        return str(self.command and self.command.name)

    @cached_property
    def here(self) -> tuple[Inventory | None, frozenset[str]]:
        """Returns (the inventory of -i or of this folder, its hosts' names); (None, empty) if the inventory cannot be
        read, or only once. No connection is made."""
        from fleet.inventory.find import find_inventory, load

        with suppress(FleetError, OSError):
            path = find_inventory(self.settings.inventory, Path.cwd(), os.environ)
            if path.is_file() and not str(path).startswith(("/dev/", "/proc/")):
                return (whole := load(path)), frozenset(whole.names)
        return None, frozenset()


_line = Line()


@contextmanager
def running(line: Line) -> Iterator[Line]:
    """Makes this the running line within the block."""
    global _line
    before, _line = _line, line
    try:
        yield line
    finally:
        _line = before


def the_line() -> Line:
    """Returns the running line, in any thread."""
    return _line


def settings_of(ctx: click.Context | None = None) -> Settings:
    """Returns the settings of the running line. ctx: a context of another line, which is only parsed; then the settings
    of that line."""
    return _line.settings if ctx is None else ctx.find_root().ensure_object(Settings)
