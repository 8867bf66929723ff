"""Checks the fleet commands of a hint before it is printed, against what is known here; no connection is made.

A command stands in single quotes, or runs to the end of its part of the hint; parts are separated by semicolons. A part
whose command would fail is left out, and one that forces something comes after the others.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from fleet.cli.line.command import one_spelling, rest_of
from fleet.cli.line.options import Settings, settings_of
from fleet.cli.line.verbs import VERBS
from fleet.errors import FleetError
from fleet.inventory.find import find_inventory, load
from fleet.inventory.select import select
from fleet.sources import INVENTORY

_BARE = rf"fleet (?:-\S+ (?:\S+ )?)*(?:{'|'.join(VERBS)})(?![\w-])[^']*\Z"
_COMMANDS = re.compile(rf"""(?<=')fleet (?:"[^"]*"|[^'"])*(?=')|(?<![\w./'-]){_BARE}""")
_HOLE = re.compile(r"[A-Z][A-Z_]*|.*(?:=[A-Z]+|\.\.\.)|~/PROJECT")  # what the reader has to fill in
_ANSWERS = {"--help", "-h", "--help-all", "--version"}
FORCES = {"--force", "-y", "--yes", "--no-preflight", "--max-delete", "--share", "--replace-key"}
# parameters that name files of this machine, by verb
FILES = {"launch": ("script",), "sync": ("src", "wheels"), "play": ("file",), "init": ("source",)}


def fitting(hint: str, group: click.Group, typed: Sequence[str], *, again: bool) -> str:
    """Returns the hint without the parts that would fail here; "" where none is left. typed: argv of the line that
    ran, which group reads. again: that same line may be proposed."""
    if "fleet " not in hint:
        return hint
    parts = [part for part in hint.split("; ") if all(fits(line, group, typed, again) for line in _lines(part))]
    return "; ".join(sorted(parts, key=_forces)).removeprefix("or ")


def _lines(part: str) -> Iterator[list[str]]:
    for found in _COMMANDS.findall(part):
        with suppress(ValueError):  # prose with a quote of its own
            yield shlex.split(found.rstrip(".,:"))


def _forces(part: str) -> bool:
    return any(not FORCES.isdisjoint(word.partition("=")[0] for word in line) for line in _lines(part))


def fits(argv: Sequence[str], group: click.Group, typed: Sequence[str], again: bool) -> bool:
    """Returns whether fleet takes a command line, and the files that it names are here or were typed."""
    if list(argv) == list(typed):
        return again
    if not _ANSWERS.isdisjoint(argv) or (len(argv) == 2 and argv[1] in VERBS):
        return True  # a verb alone is mentioned, not proposed
    try:
        given = list(_parsed(argv, group))
    except (click.ClickException, FleetError):
        return any(_HOLE.fullmatch(word) for word in argv) and _known(argv, group)
    values = [ctx.params[name] for ctx in given for name in FILES.get(str(ctx.info_name), ())]
    named = [str(value) for each in values for value in (each if isinstance(each, tuple | list) else [each]) if value]
    here = all(_is_here(name, typed) for name in named) and _has_hosts(settings_of(given[0]))
    return here and (again or not _same(given, typed, group))


def _is_here(name: str, typed: Sequence[str]) -> bool:
    known = name == "-" or _HOLE.fullmatch(name) or os.path.normpath(name) in map(os.path.normpath, typed)
    return bool(known) or os.path.lexists(os.path.expanduser(name))


def _has_hosts(settings: Settings) -> bool:
    """Returns whether the inventory has the hosts of -w and -x, as far as that is known here."""
    if settings.on != INVENTORY or not (settings.hosts or settings.exclude):
        return True
    try:
        whole = load(find_inventory(settings.inventory, Path.cwd(), os.environ))
    except FleetError:
        return True
    try:
        elsewhere = lambda operand: whole.names if operand[:1] in "-^" or operand == "@failed" else None  # noqa: E731
        return bool(select(whole, settings.hosts, settings.exclude, given=elsewhere).hosts)
    except FleetError:
        return False


def _parsed(argv: Sequence[str], group: click.Group) -> Iterator[click.Context]:
    """Yields the contexts of the group and its verb. Raises ClickException for what click refuses."""
    command: click.Command = group
    ctx, rest = None, list(argv[1:])
    while True:
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


def _same(given: Sequence[click.Context], typed: Sequence[str], group: click.Group) -> bool:
    """Returns whether the line that ran means the same."""
    with suppress(click.ClickException, FleetError):
        return _meaning(given) == _meaning(list(_parsed(typed, group)))
    return False


def _meaning(given: Sequence[click.Context]) -> list[Any]:
    return [settings_of(given[0]), *((ctx.info_name, ctx.params, ctx.args) for ctx in given[1:])]
