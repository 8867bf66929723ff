"""Reads the inventory of a command line once, and selects the hosts of -w and -x."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleet.best_effort import best_effort
from fleet.cli.line.command import ONLY_LOOKS
from fleet.cli.line.line import settings_of, the_line
from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean, detail, inform
from fleet.codec import from_json
from fleet.errors import FleetError, InventoryError, NoInventory, UsageError
from fleet.inventory.fields import FieldError
from fleet.model import Inventory
from fleet.node.base.files import replace_file
from fleet.own import bounded, home, read_json
from fleet.rules.units import counted
from fleet.sources import INVENTORY, SOURCES, hosts_on

if TYPE_CHECKING:
    from fleet.answers.run_start_events import Submitted
    from fleet.sources.source import Source

STDIN, FILE, FAILED, UNFIT = "-", "^", "@failed", "@unfit"
read = set[str]()  # STDIN, once this process has taken names from there


def load_all_hosts() -> Inventory:
    """Returns all hosts of the command line's inventory: that of --on, -i, $FLEET_INVENTORY or the current folder.
    Reads it once per command line."""
    line = the_line()
    if line.inventory is None:
        line.inventory = found = _read()
        where = Path(found.source).absolute() if line.settings.on == INVENTORY else found.source
        detail(clean(f"inventory {where}, {counted(len(found.hosts), 'host')}"))
    return line.inventory


def _read() -> Inventory:
    from fleet.inventory.find import find_inventory, load

    settings, given = settings_of(), click.get_current_context().params
    runs_dir = given.get("runs_dir") or Path("runs")
    run = given.get("run") or (given.get("what") if "runs_dir" in given else None)
    if isinstance(run, str) and settings.inventory is None:
        _enter(run, runs_dir)
    if settings.on == INVENTORY:
        try:
            return load(find_inventory(settings.inventory, Path.cwd(), os.environ))
        except NoInventory as error:
            raise _within(error) from None
    if settings.inventory is not None:
        raise UsageError(f"--on {settings.on} has its own hosts, and takes no -i", hint="leave out one of the two")
    inventory, settings.transport = hosts_on(settings.on, settings.transport, os.environ)
    return inventory


def job_here(run: str, runs_dir: Path) -> tuple[str, Submitted] | None:
    """Returns (run id, job) of a run that was submitted to a queue; None inside of that job, or for other runs."""
    if settings_of().inventory is not None:
        return None
    from fleet.ops.run.kept.job import job_of

    found = job_of(run, runs_dir)
    return None if found is None or _within_job(found[1]) else found


def _within_job(job: Submitted) -> bool:
    """Returns whether this process runs in that job."""
    return SOURCES.get(job.on).job(os.environ) == job.job.partition("@")[0]


def enter_all() -> None:
    """Selects the hosts of all jobs of the --on queue that lead a run of this user. Does nothing inside of a job."""
    if (name := settings_of().on) != INVENTORY and SOURCES.get(name).detect(os.environ) is None:
        os.environ.update(SOURCES.get(name).enter_all())


def _enter(run: str, runs_dir: Path) -> None:
    """Selects the hosts of the job of a submitted run. Raises InventoryError for a run in containers of a platform,
    which no head can reach."""
    from fleet.ops.run.kept.job import is_ours, run_here, submitted
    from fleet.ops.run.kept.local import platform_of

    if (run_id := run_here(run, runs_dir)) is None:
        return
    job, settings = submitted(runs_dir / run_id), settings_of()
    if job is not None and not _within_job(job) and is_ours(runs_dir / run_id):
        settings.on = job.on
        os.environ.update(SOURCES.get(job.on).enter(job.job))  # a child that cleans up inherits them
    elif (platform := platform_of(runs_dir / run_id)) is not None:
        raise InventoryError(
            f"run {run_id} is of containers that a platform ({platform}) started: no head reaches them",
            hint=f"end it where the platform has it; 'fleet logs {run_id}' shows its logs",
        )


def _within(error: NoInventory) -> FleetError:
    """Returns the error. If this process is in a job of a source, its hint is the --on of that source."""
    for name in SOURCES.own:
        if (what := SOURCES.get(name).detect(os.environ)) is not None:
            return error.but(message=f"no inventory found; this is {what}", hint=f"give --on {name} to take its hosts")
    return error


def load_inventory() -> Inventory:
    """Returns the inventory with the hosts of -w and -x alone."""
    return narrowed(load_all_hosts())


def narrowed(inventory: Inventory) -> Inventory:
    """Returns the inventory with the hosts of -w and -x alone."""
    from fleet.inventory.nodeset import fold
    from fleet.inventory.select import select

    settings, source = settings_of(), inventory.source

    def given(operand: str) -> Sequence[str] | None:
        if operand != UNFIT:
            return hosts_of(operand, source)
        from fleet.rules.judge import ignored

        # hosts that left the inventory are not selected anyway; a rule that a host ignores does not make it unfit
        found = unfit_of(source)
        return [host.name for host in inventory.hosts if found.get(host.name, set()) - set(ignored(host))]

    chosen = select(inventory, settings.hosts, settings.exclude, given=given)
    if settings.hosts in (STDIN, FAILED):  # hints repeat -w; they name the hosts that it means now
        settings.hosts = fold(chosen.names)
    return chosen


# -- operands of -w and -x that mean names on standard input, in a file, or in a record of the head
@functools.cache  # a pipe can be read only once, and each step of a playbook uses the hosts that were read at its start
def hosts_of(operand: str, source: str) -> Sequence[str] | None:
    """Returns the names that "-", "^FILE" or "@failed" means; None for other operands. Raises FieldError or
    UsageError."""
    if operand == FAILED:
        return _failed(source)
    if operand == STDIN:
        if terminal.interactive(sys.stdin):
            raise UsageError("-w -: standard input is a terminal, which is not read", hint="give it names: < FILE")
        read.add(operand)
        return _tokens_in(0)
    return _tokens_in(os.path.expanduser(operand[1:])) if operand[:1] == FILE else None


def _tokens_in(file: str | int) -> Sequence[str]:
    try:
        with open(file, "rb", closefd=file != 0) as opened:
            text = bounded(opened).decode("utf-8", "replace")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the file's name
        raise FieldError(f"it cannot be read: {getattr(error, 'strerror', error)}") from None
    tokens = [token for line in text.splitlines() for token in line.partition("#")[0].split()]
    if not tokens:
        raise FieldError("it names no host")
    return tokens


def keep_failed(names: Sequence[str]) -> None:
    """Records the hosts on which this verb failed, for `-w @failed`. The next verb with the same inventory replaces or
    removes the record when it ends. A verb that only looks at runs does not change it."""
    line = the_line()
    if line.inventory is None or getattr(line.command, "interrupted", None) == ONLY_LOOKS:
        return
    with best_effort("record the failed hosts for @failed", (OSError, UsageError, RuntimeError)):
        place = _place(line.inventory.source)
        if names:
            home(Path.home(), place.parent.name)
            replace_file(os.fsencode(place), json.dumps(names).encode(), 0o600, durable=False)
        else:
            place.unlink(missing_ok=True)


def _place(source: str) -> Path:
    return Path("~/.fleet/failed").expanduser() / hashlib.sha256(os.fsencode(os.path.abspath(source))).hexdigest()[:16]


def _failed(source: str) -> Sequence[str]:
    try:
        return from_json(list[str], read_json(_place(source)))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: the user has no home
        raise FieldError("no host is on record that failed in the last verb") from None


@functools.cache
def unfit_of(source: str, scope: str | None = None) -> Mapping[str, set[str]]:
    """Returns unfit host -> the ids of the rules that it fails, for the inventory of that source. Raises FieldError."""
    from fleet.ops.health import load, scope_of
    from fleet.rules.history import unfit

    kept, wrong = load()
    if wrong:
        raise FieldError(wrong, "'fleet check' writes it again, from what the hosts have now")
    return unfit(kept, scope or scope_of(source))


def without_unfit(expression: str | None, source: Source, options: Sequence[str]) -> str | None:
    """Returns a queue's node set, in which the names of unfit hosts replace @unfit. Omits names that the queue does not
    know, because the queue would refuse the request. options: those that are passed on to the queue."""
    names = list[str]()
    for each in (expression or "").split(","):
        if each == UNFIT:
            scope, there = source.nodes_for(options, os.environ)
            found = unfit_of(source.name, scope)
            if not there:
                inform(f"warning: -x {UNFIT} leaves out none: the names of the nodes of {source.name} are not known")
            names += [name for name in found if name in there]
        else:
            names.append(each)
    return ",".join(names) or None
