"""Reads a platform's variables: the kinds that tables name after a colon, read as the text of a thing."""

import re
import socket

from fleet.node.base import json
from fleet.node.base.processes import read_file
from fleet.node.base.types import Callable, Mapping

FILE_BYTES = 1 << 20


def items(value: str) -> "list[str]":
    return [item for item in re.split(r"[\s,;]+", value) if item]


def nodelist_first(value: str) -> str:
    """Returns gpu03 of gpu[03-07,11],x."""
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", value)
    return "".join(part or "" for part in found.groups()) if found else value


def own_names() -> "set[str]":
    name = socket.gethostname()
    return {name, name.partition(".")[0], socket.getfqdn()}


def place_in(names: "list[str]", own: "set[str]") -> str:
    """ "" where it is in none of them."""
    at = [n for n, name in enumerate(names) if name in own or name.partition(".")[0] in own]
    return str(at[0]) if at else ""


def names_in(path: str) -> "list[str]":
    """Returns a file's lines, each once."""
    lines = read_file(path, FILE_BYTES).decode("utf-8", "replace").split()
    return list(dict.fromkeys(lines))


def json_names(value: str) -> "list[str]":
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    return [str(name) for name in found] if isinstance(found, list) else []


def reader(kind: str, value: str, environ: "Mapping[str, str]") -> str:
    """The text that a thing has; "" where the variable does not hold it."""
    kind, _, other = kind.partition(":")
    names: list[str] = []
    if kind.startswith("json"):
        names = json_names(value)
    elif kind.startswith("file"):
        names = names_in(value)
    elif kind.startswith("pairs"):
        names = items(value)[::2]
    how: dict[str, Callable[[], str]] = {
        "": lambda: value,
        "first": lambda: (items(value) or [""])[0],
        "lines": lambda: str(len(items(value))),
        "number": lambda: (re.match(r"\d*", value) or [""])[0],
        "host": lambda: value.rpartition(":")[0] or value,
        "port": lambda: value.rpartition(":")[2] if ":" in value else "",
        "nodelist-first": lambda: nodelist_first(value),
    }
    if kind in how:
        return how[kind]()
    if kind.endswith("-count"):
        return str(len(names)) if names else ""
    if kind.endswith("-first"):
        return names[0] if names else ""
    return place_in(names, {environ[other]} if other in environ else own_names())
