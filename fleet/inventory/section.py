"""Reads the inventory's `sync:` section, for a `fleet sync` without arguments:

    sync:
      code: .                       # or {src: ., to: ~/work}
      data: [/data/set:/data/]      # PATH[:DEST], one or a list
      wheels: requirements.txt      # or a folder of wheels

Paths are as on the command line: a relative path starts at the current folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import InventoryError
from fleet.inventory.fields import shown, suggest
from fleet.model import Inventory

PARTS = ("code", "data", "wheels")


@dataclass(frozen=True)
class Section:
    """Holds the section. code: (source, destination or None). data: texts PATH[:DEST]. wheels: a folder or a
    requirements file."""

    code: tuple[Path, str | None] | None
    data: tuple[str, ...]
    wheels: Path | None


def read_section(inventory: Inventory) -> Section:
    """Returns the section of an inventory. Raises InventoryError for an invalid section. Pure."""

    def fail(message: str, hint: str | None = None) -> InventoryError:
        return InventoryError(f"sync: {message}", where=inventory.source, hint=hint)

    def text(value: Any, key: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise fail(f"'{key}' must be text, a path", hint=f"for example {key}: ./{key}")
        return value

    def known(keys: Any, names: tuple[str, ...], what: str) -> None:
        for key in keys:
            if key not in names:
                hint = suggest(str(key), names) or f"it knows {', '.join(names)}"
                raise fail(f"unknown key {shown(str(key))} in {what}", hint)

    raw = inventory.sync
    known(raw, PARTS, "the section")
    code: tuple[Path, str | None] | None = None
    if raw.get("code") is not None:
        value = raw["code"] if isinstance(raw["code"], dict) else {"src": raw["code"]}
        known(value, ("src", "to"), "'code'")
        to = value.get("to")
        code = (Path(text(value.get("src", "."), "src")), None if to is None else text(to, "to"))
    items = raw.get("data") or []
    data = tuple(text(item, "data") for item in (items if isinstance(items, list) else [items]))
    wheels = raw.get("wheels")
    return Section(code, data, None if wheels is None else Path(text(wheels, "wheels")))
