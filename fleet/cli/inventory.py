"""The inventory of a command line, read once; whole, or narrowed by -w and -x."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fleet.cli.line.options import settings_of
from fleet.cli.screen.output import clean, talk
from fleet.model import Inventory
from fleet.rules.units import counted


def load_everyone() -> Inventory:
    """The inventory that -i, $FLEET_INVENTORY or the current folder name, whole; read once a command line."""
    from fleet.inventory.find import find_inventory, load

    meta = click.get_current_context().find_root().meta
    if "fleet.inventory" not in meta:
        path = find_inventory(settings_of().inventory, Path.cwd(), os.environ)
        meta["fleet.inventory"] = found = load(path)
        if settings_of().verbose and not settings_of().json:
            talk(clean(f"inventory {path}, {counted(len(found.hosts), 'host')}"))
    everyone = meta["fleet.inventory"]
    assert isinstance(everyone, Inventory)
    return everyone


def use_inventory(everyone: Inventory) -> None:
    """Instead of one that is read."""
    click.get_current_context().find_root().meta["fleet.inventory"] = everyone


def load_inventory() -> Inventory:
    """The same, narrowed by -w and -x."""
    from fleet.inventory.select import select

    settings = settings_of()
    return select(load_everyone(), settings.hosts, settings.exclude)
