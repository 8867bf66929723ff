"""What an inventory is to hold: a new one, or one to which is added."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fleet.errors import InventoryError
from fleet.inventory.write import Edit, fields_of, render
from fleet.inventory.yaml_file import parse_yaml, read_defaults
from fleet.model import Inventory

ABOUT = (
    "The hosts, in the order of their node ranks. 'fleet hosts' shows what is read from here; docs/inventory.md has",
    "all keys. Written by 'fleet init': run again, it proposes what is missing.",
)


def proposed(
    path: Path, old: str | None, inventory: Inventory, new: Collection[str], remarks: Mapping[str, str]
) -> tuple[str, dict[str, dict[str, Any]]]:
    """(the text, host -> fields that it has no place for)."""
    if old is None:
        return render(inventory, ABOUT, remarks), {}
    there, defaults = parse_yaml(old, str(path)), read_defaults(old, str(path))
    edit, left = Edit(old), dict[str, dict[str, Any]]()
    for host in inventory.hosts:
        known = defaults if host.name in new else fields_of(there.host(host.name))
        missing = {key: value for key, value in fields_of(host).items() if known.get(key) != value}
        if host.name in new:
            placed = edit.add_host(host.name, missing, remarks.get(host.name))
        else:
            placed = not missing or edit.add_fields(host.name, missing)
        if not placed:
            left[host.name] = missing
    found = {host.name: host for host in parse_yaml(edit.text, str(path)).hosts}
    wrong = [host.name for host in inventory.hosts if host.name not in left and found.get(host.name) != host]
    if wrong:
        raise InventoryError(f"cannot be added to: host {wrong[0]} would be another one", where=str(path))
    return edit.text, left
