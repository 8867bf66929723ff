"""Checks the fleet commands of a hint before it is printed, against what is known here; no connection is made.

A command stands in single quotes or backticks, or runs to the end of its part of the hint; parts are separated by
semicolons. A part whose command would fail is left out, and one that forces something comes after the others.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click

from fleet.cli.line.command import one_spelling, rest_of
from fleet.cli.line.options import Settings, settings_of
from fleet.cli.line.verbs import VERBS
from fleet.errors import FleetError
from fleet.model import Inventory
from fleet.sources import INVENTORY

_BARE = rf"fleet (?:-\S+ (?:[^-\s]\S* )?)*(?:{'|'.join(VERBS)})(?![\w-])[^']*\Z"
_COMMANDS = re.compile(rf"""(?<=['`])fleet (?:"[^"]*"|[^'`"])*(?=['`])|(?<![\w./'`-]){_BARE}""")
_STOP = re.compile(r"(?<=[\w\"')\]])[.,:]+$")  # of a sentence, not of a command
_HOLE = re.compile(r"[A-Z][A-Z_]*|.*(?:=[A-Z]+|\.\.\.)|~/PROJECT")  # what the reader has to fill in
_ANSWERS = re.compile(r"--help(-all)?|--version|-\w*h")
FORCES = {"--force", "-y", "--yes", "--no-preflight", "--max-delete", "--share", "--replace-key"}
# parameters that name files of this machine, by verb
FILES = {"launch": ("script",), "sync": ("src", "wheels"), "init": ("source",)}
NEW_HOSTS = ("init", "hosts")  # -w may name hosts that no inventory has yet


class Line(NamedTuple):
    """Holds the command line that runs. group reads it. typed: its argv. inventory: of -i, None without one. known:
    what was found out for hints before."""

    group: click.Group
    typed: Sequence[str]
    inventory: str | None
    known: dict[Any, Any]


def fitting(hint: str, line: Line, *, again: bool) -> str:
    """Returns the hint without the parts that would fail here; "" where none is left. again: the line that ran may be
    proposed."""
    if "fleet " not in hint:
        return hint
    kept = list[str]()
    whole = True
    for part in hint.split("; "):
        fit = all(fits(each, line, again) for each in _lines(part))
        kept += [part if whole else part.removeprefix("or ")] * fit
        whole = fit
    return "; ".join(sorted(kept, key=_forces)).removeprefix("or ")


def _lines(part: str) -> Iterator[list[str]]:
    for found in _COMMANDS.findall(part):
        with suppress(ValueError):  # prose with a quote of its own
            yield shlex.split(_STOP.sub("", found))


def _forces(part: str) -> bool:
    return any(not FORCES.isdisjoint(word.partition("=")[0] for word in line) for line in _lines(part))


def fits(argv: Sequence[str], line: Line, again: bool) -> bool:
    """Returns whether fleet takes a command line, the files that it names are here or were typed, the inventory has its
    hosts, and no secret is in it. What cannot be known is no reason against it."""
    from fleet.inventory.secret import SECRET

    if any(SECRET.search(name) and value not in ("", "...") for name, value in map(_assigned, argv)):
        return False
    if list(argv) == list(line.typed):
        return again
    if any(map(_ANSWERS.fullmatch, argv)) or (len(argv) == 2 and argv[1] in VERBS):
        return True  # a verb alone is mentioned, not proposed
    try:
        given = list(_parsed(argv, line.group))
    except (click.ClickException, FleetError):
        return any(_HOLE.fullmatch(word) for word in argv) and _known(argv, line.group)
    except Exception:  # fleet was replaced while it ran: a verb's module is of another one, or gone
        return True
    verb = given[-1]
    values = [verb.params[name] for name in FILES.get(str(verb.info_name), ()) if not verb.params.get("module")]
    named = [str(value) for each in values for value in (each if isinstance(each, tuple | list) else [each]) if value]
    here = all(_is_here(name, line.typed) for name in named)
    known = verb.info_name in NEW_HOSTS or _has_hosts(settings_of(given[0]), line)
    return here and known and (again or not _same(given, line))


def _assigned(word: str) -> tuple[str, str]:
    """Returns the variable and the value of NAME=VALUE; "" for another word."""
    name, _, value = word.removeprefix("--env=").partition("=")
    return (name, value) if name.isidentifier() else ("", "")


def _is_here(name: str, typed: Sequence[str]) -> bool:
    known = name == "-" or _HOLE.fullmatch(name) or os.path.normpath(name) in map(os.path.normpath, typed)
    return bool(known) or os.path.lexists(os.path.expanduser(name))


def _has_hosts(settings: Settings, line: Line) -> bool:
    """Returns whether the inventory has the hosts of -w and -x. Only the inventory of the line that ran is read: any
    other may be a node's idea."""
    if settings.on != INVENTORY or settings.inventory != line.inventory or not (settings.hosts or settings.exclude):
        return True
    if _HOLE.fullmatch(settings.hosts or settings.exclude or ""):
        return True
    asked = settings.hosts, settings.exclude
    if asked not in line.known:
        line.known[asked] = _selects(line, *asked)
    return bool(line.known[asked])


def _selects(line: Line, hosts: str | None, exclude: str | None) -> bool:
    from fleet.inventory.select import select

    if "inventory" not in line.known:
        line.known["inventory"] = inventory_here(line.inventory)
    whole, names = line.known["inventory"]
    if whole is None or (hosts in names and not exclude):
        return True
    try:
        select(whole, hosts, exclude, given=lambda operand: whole.names if _is_elsewhere(operand) else None)
    except FleetError:
        return False
    return True


def _is_elsewhere(operand: str) -> bool:
    return operand[:1] in "-^" or operand == "@failed"


def inventory_here(named: str | None) -> tuple[Inventory | None, frozenset[str]]:
    """Returns an inventory and its hosts' names; (None, empty) where it cannot be read, or could be read once only."""
    from fleet.inventory.find import find_inventory, load

    with suppress(FleetError, OSError):
        path = find_inventory(named, Path.cwd(), os.environ)
        if path.is_file() and not str(path).startswith(("/dev/", "/proc/")):
            return (whole := load(path)), frozenset(whole.names)
    return None, frozenset()


def _parsed(argv: Sequence[str], group: click.Group) -> Iterator[click.Context]:
    """Yields the contexts of the group and its verb. Raises ClickException for what click refuses."""
    command: click.Command = group
    ctx, rest = None, list(argv[1:])
    while rest or not isinstance(command, click.Group):  # a group without a verb would print its help
        with command.make_context(command.name, rest, parent=ctx) as ctx:
            yield ctx
            if not isinstance(command, click.Group):
                return
            _, found, rest = command.resolve_command(ctx, rest_of(ctx))
            assert found is not None
            command = found


def _known(argv: Sequence[str], group: click.Group) -> bool:
    """Returns whether a line with something to fill in has a verb of fleet's and options of that verb."""
    params, verb = [*group.params], None
    for word in argv[1:]:
        if word == "--":
            break
        name = one_spelling(word.partition("=")[0])
        if word.startswith("-") and not any(name in (*param.opts, *param.secondary_opts) for param in params):
            return False
        if verb is None and (verb := group.get_command(click.Context(group), name)) is not None:
            params += verb.params
    return verb is not None


def _same(given: Sequence[click.Context], line: Line) -> bool:
    """Returns whether the line that ran means the same."""
    with suppress(click.ClickException, FleetError):
        return _meaning(given) == _meaning(list(_parsed(line.typed, line.group)))
    return False


def _meaning(given: Sequence[click.Context]) -> list[Any]:
    return [settings_of(given[0]), *((ctx.info_name, ctx.params, ctx.args) for ctx in given[1:])]
