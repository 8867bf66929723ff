"""Hints as they are printed: a fleet command in one has the options of the user's own line, so that
it can be copied as it is. Every hint goes through here, from any printer and any thread."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from fleet.cli.line.options import Settings
from fleet.cli.line.proposed import Line, fitting
from fleet.cli.line.verbs import VERBS
from fleet.errors import InventoryError, UsageError

_VERBS = "|".join(name for name, verb in VERBS.items() if verb.hosts)
_FLEET = r"(?<![\w./-])fleet "
_COMMAND = re.compile(rf"{_FLEET}(?P<rest>(?:{_VERBS})(?![\w-])(?! --help)[^;`\n]*?)(?={_FLEET}|[;`\n]|\Z)")

_FLAGS = re.compile(r"launch(?P<flags>(?: --[\w-]+)+)(?=['.,]|\Z)")  # of a launch without its script

_line = Settings()
_group: click.Group | None = None  # all verbs
_typed: Sequence[str] = ()
_known: dict[Any, Any] = {}  # what its hints have found out
_launch: tuple[list[str], list[str]] | None = None  # the running launch: its argv before the script, and from it on


@contextmanager
def of_line() -> Iterator[None]:
    """While one command line runs; a playbook's steps are lines of their own."""
    global _line, _launch, _group, _typed
    before = _line, _launch, _group, _typed
    try:
        yield
    finally:
        _line, _launch, _group, _typed = before


def begin(group: click.Group, typed: Sequence[str]) -> None:
    """Keeps the argv of the command line that runs, and the command that it is read by."""
    global _group, _typed
    _group, _typed = group, typed
    _known.clear()


def remember(settings: Settings) -> None:
    """Keeps the settings of the command line that runs."""
    global _line
    _line = settings


def launching(typed: Sequence[str], args: Sequence[str]) -> None:
    """The line that runs is a launch. typed: its argv; the last are `args`, the script and what is its own."""
    from fleet.inventory.secret import masked_words

    global _launch
    at = len(typed) - len(args)
    _launch = masked_words(typed[1:at]), masked_words(typed[at:])


def quote(word: str) -> str:
    """A token as a shell reads it back; with double quotes where they do, as a hint has commands in single ones."""
    if shlex.quote(word) == word or re.search(r"[\"$`\\!']", word):
        return shlex.quote(word)
    return f'"{word}"'


def proposed(hint: str | None, *, selection: bool = True, again: bool = True) -> str | None:
    """Returns the hint as_typed(), without the commands that would fail; None where nothing is left. again: the line
    that ran may be proposed."""
    if not hint or _group is None:
        return hint and as_typed(hint, selection=selection)
    line = Line(_group, _typed, _line.inventory, _known)
    return fitting(as_typed(hint, selection=selection), line, again=again and _launch is None) or None


def as_typed(hint: str, *, selection: bool = True) -> str:
    """Returns the hint, in front of the verb of its commands the -i, --on, -w, -x, --transport of the user's line.
    selection: not -w and -x where it may be they that are wrong."""
    flags = {
        "-i": _line.inventory,
        "--on": _line.on if _line.on != Settings.on else None,
        "-w": _line.hosts if selection else None,
        "-x": _line.exclude if selection else None,
        "--transport": _line.transport if _line.transport != Settings.transport and _line.on == Settings.on else None,
    }

    def repeat(match: re.Match[str]) -> str:
        rest = match["rest"]
        own = rest.partition(" -- ")[0]
        alone = _FLAGS.match(own)
        if alone and _launch is None:
            rest = f"{alone[0]} SCRIPT{rest[alone.end() :]}"
        elif alone and _launch is not None:
            options, script = _launch
            new = [flag for flag in alone["flags"].split() if flag not in options]
            at = len(options) - (options[-1:] == ["--"])
            argv = [*options[:at], *new, *options[at:], *script]
            return f"fleet {' '.join(map(quote, argv))}{rest[alone.end() :]}"
        given = [
            f"{flag} {quote(value)} "
            for flag, value in flags.items()
            if value is not None
            and not re.search(rf" {flag}\b", own)
            and not (flag == "--transport" and own.startswith("setup-ssh"))  # which has its own
        ]
        return f"fleet {''.join(given)}{rest}"

    return _COMMAND.sub(repeat, hint)


def of_error(kind: object) -> dict[str, bool]:
    """Returns what the hint of an error may not have: of an inventory's, -w or -x may be the cause, and a line that
    was not understood fails again."""
    return {"selection": kind != InventoryError.kind, "again": kind != UsageError.kind}


def in_document(value: Any, key: str = "", **may: bool) -> Any:
    """Returns a JSON value with its hints and next commands as they are printed. may: as for proposed()."""
    if isinstance(value, Mapping):
        return {name: in_document(each, name, **of_error(value.get("kind"))) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [in_document(each, key, **may) for each in value]
    if not isinstance(value, str) or key not in ("hint", "remedy", "next"):
        return value
    if key == "next":  # whole lines, as the screen has them
        return as_typed(value, selection=may.get("selection", True))
    return proposed(value, **may) or ("" if key == "remedy" else None)
