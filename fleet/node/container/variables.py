"""Reads a platform's variables. The tables in platforms.py name the variables as VARIABLE:READER, and this module has
the readers. A reader returns one value of a container's place, such as its "rank" or "master", as text."""

import os
import re
import socket
from fnmatch import fnmatchcase

from fleet.node.base import json
from fleet.node.base.processes import read_file
from fleet.node.base.types import Any, Callable, Mapping

FILE_BYTES = 1 << 20
# value of a place -> the variables that nearly all platforms set for it
MEETING = {"each": ["NPROC_PER_NODE"], "master": ["MASTER_ADDR"], "port": ["MASTER_PORT"]}


def items(value: str) -> "list[str]":
    return [item for item in re.split(r"[\s,;]+", value) if item]


def nodelist_first(value: str) -> str:
    """Returns the first host of a Slurm node list: gpu03 of gpu[03-07,11],x."""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])*", value)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", found.group() if found else "")


def own_names() -> "set[str]":
    name = socket.gethostname()
    return {name, name.partition(".")[0], socket.getfqdn()}


def place_in(names: "list[str]", own: "set[str]") -> str:
    """Returns the index of the first of `names` that is this machine's, or "" if none is. own: this machine's names."""
    at = [n for n, name in enumerate(names) if name in own or name.partition(".")[0] in own]
    return str(at[0]) if at else ""


def names_in(path: str) -> "list[str]":
    """Returns the first token of each line of a file, without repetitions, or [] if the file cannot be read."""
    if not os.path.isfile(path):  # reading a pipe would wait
        return []
    rows = read_file(path, FILE_BYTES).decode("utf-8", "replace").splitlines()
    return list(dict.fromkeys(row.split()[0] for row in rows if row.strip()))


def json_of(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def json_names(value: str) -> "list[str]":
    found = json_of(value)
    return [str(name) for name in found] if isinstance(found, list) else []


def cluster(value: str) -> "tuple[list[str], str]":
    """Returns (all hosts, this host or "") of Vertex AI's CLUSTER_SPEC, sorted by pool. The value is {"cluster": {POOL:
    [HOST:PORT]}, "task": {"type": POOL, "index"}}."""
    spec = json_of(value)
    try:
        pools = {str(pool): list(map(str, hosts)) for pool, hosts in spec["cluster"].items()}
        names = [name for pool in sorted(pools) for name in pools[pool]]
        at = range(len(names)).index(spec["task"]["index"])
        return names, (pools.get(spec["task"]["type"], [])[at:] or [""])[0]
    except (AttributeError, TypeError, KeyError, ValueError):
        return [], ""


def host_and_port(value: str) -> "tuple[str, str]":
    """Returns (host, port or "") of HOST:PORT, [IPv6]:PORT or HOST. An IPv6 address without brackets has no port."""
    found = re.match(r"(\[.*\]|[^:]*)(?::([^:]*))?\Z", value)
    return (found.group(1), found.group(2) or "") if found else (value, "")


def first_is(value: str, main: str) -> str:
    """Returns the new rank of the node with rank `value`, after the node with rank `main` was moved to the front, and
    the others kept their order. Returns "" if `main` is no number."""
    if not re.match(r"[0-9]{1,9}\Z", main):
        return ""
    if not re.match(r"[0-9]{1,9}\Z", value):
        return value
    at, first = int(value), int(main)
    return "0" if at == first else str(at + (at < first))


LISTS: "dict[str, Callable[[str], list[str]]]" = {
    "json": json_names,
    "file": names_in,
    "pairs": lambda value: items(value)[::2],
    "items": items,
    "cluster": lambda value: cluster(value)[0],
}
PLAIN: "dict[str, Callable[[str], str | None]]" = {
    "": lambda value: value,
    "number": lambda value: re.match(r"\d*", value).group(),  # type: ignore[union-attr]
    "host": lambda value: host_and_port(value)[0],
    "port": lambda value: host_and_port(value)[1],
    "nodelist": nodelist_first,
    "gpus": lambda value: "1" if value == "0" else value,  # a node without GPUs has one rank
    "some": lambda value: None if value == "0" else value,
    "static": lambda value: None if ":" in value else value,
}


def reader(kind: str, other: str, value: str, environ: "Mapping[str, str]") -> "str | None":
    """Returns what the reader `kind` finds in a variable's value. other: the reader's second argument, the name of
    another variable. Returns "" if the reader finds nothing, and None if the variable is to be treated as not set."""
    if kind in PLAIN:
        return PLAIN[kind](value)
    if kind == "where":
        return value if environ.get(other) else None
    if kind == "first-is":
        return first_is(value, environ.get(other, ""))
    source, _, which = kind.rpartition("-")
    names = LISTS[source](value)
    if which == "count":
        return str(len(names)) if names else ""
    if which == "place":
        own = {environ[other]} if other in environ else own_names()
        return place_in(names, {cluster(value)[1]} if source == "cluster" else own)
    host, port = host_and_port(names[which == "second"]) if len(names) > (which == "second") else ("", "")
    return port if which == "port" else host


def value_of(variable: str, environ: "Mapping[str, str]") -> "tuple[str, str | None]":
    """Returns (name, text) for a table's VARIABLE, VARIABLE:READER or VARIABLE:READER:OTHER. The name is for messages,
    and includes OTHER, except for the reader "where". The text is None if the variable is not set."""
    pattern, _, kind = variable.partition(":")
    kind, _, other = kind.partition(":")
    name = re.sub(r"\{(\w+)\}", lambda found: environ.get(found.group(1), ""), pattern)
    if "*" in name:
        value = ",".join(environ[each] for each in sorted(environ) if fnmatchcase(each, name))
    else:
        value = environ.get(name, "")
    text = reader(kind, other, value, environ) if value else None
    shown = "%s with %s" % (name, other) if other and kind != "where" else name
    return shown, None if text is None else text.strip()
