"""The inventory of a command line, read once; whole, or narrowed by -w and -x."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleet.cli.line.command import ONLY_LOOKS
from fleet.cli.line.options import settings_of
from fleet.cli.screen.output import clean, talk
from fleet.errors import FleetError, InventoryError, NoInventory, UsageError
from fleet.model import Inventory
from fleet.rules.units import counted
from fleet.sources import INVENTORY, SOURCES, hosts_on

if TYPE_CHECKING:
    from fleet.answers.run_events import Submitted


def load_everyone() -> Inventory:
    """The inventory that -i, $FLEET_INVENTORY or the current folder name, or the hosts of --on, whole; read once a
    command line."""
    meta = click.get_current_context().find_root().meta
    if "fleet.inventory" not in meta:
        meta["fleet.inventory"] = found = _read()
        if settings_of().verbose and not settings_of().json:
            where = Path(found.source).absolute() if settings_of().on == INVENTORY else found.source
            talk(clean(f"inventory {where}, {counted(len(found.hosts), 'host')}"))
    inventory = meta["fleet.inventory"]
    assert isinstance(inventory, Inventory)
    return inventory


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
    """(the run, its job) of one that was submitted to a queue, where this process is none of its job's."""
    if settings_of().inventory is not None:
        return None
    from fleet.ops.run.kept.job import job_of

    found = job_of(run, runs_dir)
    return None if found is None or SOURCES.get(found[1].on).detect(os.environ) else found


def enter_all() -> None:
    """Selects the hosts of all jobs that lead a run there, where this process is in nothing that --on names."""
    if (name := settings_of().on) != INVENTORY and SOURCES.get(name).detect(os.environ) is None:
        os.environ.update(SOURCES.get(name).enter_all())


def _enter(run: str, runs_dir: Path) -> None:
    """The job of a run that was submitted to a queue. InventoryError where no host of an inventory knows of a run."""
    from fleet.ops.run.kept.job import is_ours, run_here, submitted
    from fleet.ops.run.kept.local import platform_of

    if (run_id := run_here(run, runs_dir)) is None:
        return
    job, settings = submitted(runs_dir / run_id), settings_of()
    if job is not None and not SOURCES.get(job.on).detect(os.environ) and is_ours(runs_dir / run_id):
        settings.on = job.on
        os.environ.update(SOURCES.get(job.on).enter(job.job))  # for cleanup, too
    elif (platform := platform_of(runs_dir / run_id)) is not None:
        raise InventoryError(
            f"run {run_id} is of containers that a platform ({platform}) started: no head reaches them",
            hint=f"end it where the platform has it; 'fleet logs {run_id}' shows its logs",
        )


def _within(error: NoInventory) -> FleetError:
    """The error, with the way out where this process is in what a source knows."""
    for name in SOURCES.own:
        if (what := SOURCES.get(name).detect(os.environ)) is not None:
            return error.but(message=f"no inventory found; this is {what}", hint=f"give --on {name} to take its hosts")
    return error


def use_inventory(everyone: Inventory) -> None:
    """Instead of one that is read."""
    click.get_current_context().find_root().meta["fleet.inventory"] = everyone


def load_inventory() -> Inventory:
    """The same, narrowed by -w and -x."""
    return narrowed(load_everyone())


def narrowed(inventory: Inventory) -> Inventory:
    """Returns the inventory with the hosts of -w and -x alone."""
    from fleet.cli.elsewhere import FAILED, STDIN, hosts_of
    from fleet.inventory.nodeset import fold
    from fleet.inventory.select import select

    settings, source = settings_of(), inventory.source
    chosen = select(inventory, settings.hosts, settings.exclude, given=lambda operand: hosts_of(operand, source))
    if settings.hosts in (STDIN, FAILED):  # a hint that repeats it means these
        settings.hosts = fold(chosen.names)
    return chosen


def keep_failed(names: Sequence[str]) -> None:
    """Keeps the hosts on which this command line's verb has failed, for `-w @failed`. A verb that only looks at runs
    leaves what is kept."""
    from fleet.cli import elsewhere

    ctx = click.get_current_context()
    inventory = ctx.find_root().meta.get("fleet.inventory")
    if inventory is not None and getattr(ctx.command, "interrupted", None) != ONLY_LOOKS:
        elsewhere.keep_failed(inventory.source, names)
