"""Finds the inventory file and reads it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from fleet.errors import InventoryError, NoInventory
from fleet.inventory.ansible import is_ansible
from fleet.inventory.fields import shown
from fleet.inventory.hostfile import is_hostfile, parse_hostfile
from fleet.inventory.section import read_section
from fleet.inventory.yaml_file import parse_yaml
from fleet.model import Inventory
from fleet.node.base.files import open_regular

VARIABLE = "FLEET_INVENTORY"
DEFAULT_FILES = ("fleet.yaml", "hostfile")
LAB = "lab"
MAX_BYTES = 16 * 1024 * 1024

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def find_inventory(explicit: str | None, cwd: Path, environ: Mapping[str, str]) -> Path:
    """Returns the inventory file: `explicit` (-i), or else $FLEET_INVENTORY, or else ./fleet.yaml, or else ./hostfile.

    "lab" means the lab's inventory; write ./lab for a file of that name. Raises InventoryError if a named file is
    missing, and NoInventory if no file is named and there is no default one.
    """
    for origin, value in (("-i", explicit), (f"${VARIABLE}", environ.get(VARIABLE) or None)):
        if value is None:
            continue
        if value == LAB:
            from fleet.lab.state import inventory_path  # the lab's modules are loaded on request only

            return inventory_path()
        path = cwd / Path(value).expanduser() if value.startswith("~/") else cwd / value
        if not value or not path.exists():
            raise InventoryError(f"no inventory {shown(value)} (named by {origin})", hint=f"looked for {path}")
        return path
    tried = [cwd / name for name in DEFAULT_FILES]
    for path in tried:
        if path.exists():
            return path
    configured = Path("~/.ssh/config").expanduser().exists()
    init = "'fleet init'" if configured else "'fleet init -', with pasted names or ssh lines,"
    looked = ", ".join(["-i (not given)", f"${VARIABLE} (not set)", *(str(path) for path in tried)])
    raise NoInventory(
        f"no inventory found; looked for: {looked}",
        hint=f"{init} writes one; or write ./hostfile with one host on a line, or name a file with -i",
    )


def load(path: Path) -> Inventory:
    """Reads an inventory file. Raises InventoryError with the line."""
    source = display(path)
    return parse(read(path, source), source)


def read(path: Path, source: str) -> bytes:
    """Returns a file's bytes. Raises InventoryError if it cannot be read or is too large."""
    try:
        own = str(path).startswith(("/dev/", "/proc/"))  # an open file of this process: <(...), /dev/stdin
        with open(path, "rb") if own else open_regular(str(path)) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InventoryError(f"cannot read the inventory: {reason}", where=source) from None
    if len(raw) > MAX_BYTES:
        raise InventoryError(f"is larger than {MAX_BYTES >> 20} MiB", where=source)
    return raw


def parse(raw: bytes, source: str) -> Inventory:
    """Returns the inventory in a file's bytes. source: the file's name, for messages and for is_yaml()."""
    text = decode(raw, source)
    try:
        inventory = parse_yaml(text, source) if is_yaml(text, source) else parse_hostfile(text, source)
    except InventoryError:
        if not is_ansible(text):
            raise
        hint = f"fleet -i {DEFAULT_FILES[0]} init {shlex.quote(source)}"
        raise InventoryError("is an inventory of ansible's", where=source, hint=hint) from None
    read_section(inventory)  # every verb reports errors of the section
    return inventory


def is_yaml(text: str, source: str) -> bool:
    """Returns whether a file is YAML, by its name or its content."""
    return source.endswith((".yaml", ".yml", ".json")) or not is_hostfile(text)


def decode(raw: bytes, source: str) -> str:
    """Returns a file's text. Raises InventoryError if it is no text."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InventoryError(
            f"is not UTF-8 text: byte 0x{raw[error.start]:02x}", where=f"{source}:{line}", hint="save it as UTF-8"
        ) from None
    if control := _CONTROL.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise InventoryError(f"holds the control character {shown(control[0])}", where=f"{source}:{line}")
    return text


def display(path: Path) -> str:
    """Returns the path for messages: relative if it is below the current folder."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)
