"""Prepares hints for printing, so that each can be copied as it is. Every printer and thread uses this module.

A command of fleet is in single quotes or backticks, or runs to the end of its part of the hint. Semicolons separate the
parts. Each command gets the options of the user's own line, and is checked against what is known on this machine; no
connection is made. A part whose command would fail is left out. Parts that force something come last.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from fleet.cli.line.command import one_spelling, parsed
from fleet.cli.line.line import Settings, settings_of, the_line
from fleet.cli.line.verbs import VERBS
from fleet.errors import FleetError, InventoryError, UsageError
from fleet.sources import INVENTORY

_FLEET = r"(?<![\w./-])fleet "
_BARE = rf"(?:-\S+ (?:[^-\s]\S* )?)*(?:{'|'.join(VERBS)})(?![\w-])[^;`\n]*?(?={_FLEET}|[;`\n]|\Z)"
_COMMAND = re.compile(rf"""(?<=['`])fleet ((?:"[^"]*"|[^'`"])*)(?=['`])|(?<!['`]){_FLEET}({_BARE})""")
_OF_HOSTS = re.compile(rf"(?:{'|'.join(name for name, verb in VERBS.items() if verb.hosts)})(?![\w-])(?! --help)")
_FLAGS = re.compile(r"launch(?P<flags>(?: --[\w-]+)+)(?=['.,]|\Z)")  # flags of a launch without its script
_STOP = re.compile(r"(?<=[\w\"')\]])[.,:]+$")  # punctuation of the sentence around a command
_HOLE = re.compile(r"[A-Z][A-Z_]*|.*(?:=[A-Z]+|\.\.\.)|~/PROJECT")  # a placeholder that the reader fills in
_ANSWERS = re.compile(r"--help(-all)?|--version|-\w*h")
FORCES = {"--force", "-y", "--yes", "--no-preflight", "--max-delete", "--share", "--replace-key"}
# fleet's own options. Their names do not mark a secret, so _leaks() examines only their values
OWN = {
    *("--password-file", "--secret-file", "--replace-key", "--key-type", "--prompt-for-sudo-password"),
    *("--env", "--env-expand", "--var"),
}
# verb -> its parameters that name files of this machine
FILES = {"launch": ("script",), "sync": ("src", "wheels"), "init": ("source",)}
NEW_HOSTS = ("init", "hosts")  # -w may name hosts that no inventory has yet


def launching(args: Sequence[str]) -> None:
    """Records that the running line is a launch. args: the end of its argv, from the script on."""
    from fleet.inventory.secret import masked_argv

    line = the_line()
    at = len(line.typed) - len(args)
    line.launch = masked_argv(line.typed[1:at]), masked_argv(line.typed[at:])


def quote(token: str) -> str:
    """Returns a token quoted for a shell. It prefers double quotes, because hints have their commands in single
    quotes."""
    if shlex.quote(token) == token or re.search(r"[\"$`\\!']", token):
        return shlex.quote(token)
    return f'"{token}"'


def proposed(hint: str | None, *, selection: bool = True, again: bool = True) -> str | None:
    """Returns the hint with the options of the user's line (see as_typed()), without the parts whose commands would
    fail here. Returns None if no part is left. again: the hint may propose the running line itself."""
    text, line = as_typed(hint or "", selection=selection), the_line()
    if line.group is None or "fleet " not in text:
        return text or None
    kept = list[str]()
    whole = True
    for part in text.split("; "):
        fit = not any(map(_leaks, _commands(part, quoted=True)))
        fit = fit and all(fits(argv, line.group, again and line.launch is None) for argv in _commands(part))
        kept += [part if whole else part.removeprefix("or ")] * fit
        whole = fit
    return "; ".join(sorted(kept, key=_forces)).removeprefix("or ") or None


def as_typed(hint: str, *, selection: bool = True) -> str:
    """Returns the hint. Each of its commands gets the -i, --on, -w, -x and --transport of the user's line, before the
    verb. selection: include -w and -x; False if they may be the cause of the error."""
    settings, launch = settings_of(), the_line().launch
    flags = {
        "-i": settings.inventory,
        "--on": settings.on if settings.on != Settings.on else None,
        "-w": settings.hosts if selection else None,
        "-x": settings.exclude if selection else None,
        "--transport": settings.transport
        if settings.transport != Settings.transport and settings.on == Settings.on
        else None,
    }

    def repeat(match: re.Match[str]) -> str:
        rest = match[1] or match[2] or ""
        if not _OF_HOSTS.match(rest):
            return match[0]
        own = rest.partition(" -- ")[0]
        alone = _FLAGS.match(own)
        if alone and launch is None:
            rest = f"{alone[0]} SCRIPT{rest[alone.end() :]}"
        elif alone and launch is not None:
            options, script = launch
            new = [flag for flag in alone["flags"].split() if flag not in options]
            at = len(options) - (options[-1:] == ["--"])
            argv = [*options[:at], *new, *options[at:], *script]
            return f"fleet {' '.join(map(quote, argv))}{rest[alone.end() :]}"
        given = [
            f"{flag} {quote(value)} "
            for flag, value in flags.items()
            if value is not None
            and not re.search(rf" {flag}\b", own)
            and not (flag == "--transport" and own.startswith("setup-ssh"))  # setup-ssh has its own
        ]
        return f"fleet {''.join(given)}{rest}"

    return _COMMAND.sub(repeat, hint)


def of_error(kind: object) -> dict[str, bool]:
    """Returns the restrictions on an error's hint, for proposed(). -w or -x may be the cause of an inventory error, and
    a line with a usage error would fail again."""
    return {"selection": kind != InventoryError.kind, "again": kind != UsageError.kind}


def in_document(value: Any, key: str = "", **may: bool) -> Any:
    """Returns a JSON value with its hints and next commands as they are printed. may: see proposed()."""
    if isinstance(value, Mapping):
        return {name: in_document(each, name, **of_error(value.get("kind"))) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [in_document(each, key, **may) for each in value]
    if not isinstance(value, str) or key not in ("hint", "remedy", "next"):
        return value
    if key == "next":  # whole lines, the same as on the screen
        return as_typed(value, selection=may.get("selection", True))
    return proposed(value, **may) or ("" if key == "remedy" else None)


# -- whether a command would work here
def _commands(part: str, *, quoted: bool = False) -> Iterator[list[str]]:
    """Yields the argv of each command in a part of a hint. quoted: include unquoted commands that contain a single
    quote; such a match may be prose."""
    for found in _COMMAND.finditer(part):
        if quoted or found[2] is None or "'" not in found[2]:
            with suppress(ValueError):
                yield shlex.split(_STOP.sub("", found[0]))


def _forces(part: str) -> bool:
    return any(not FORCES.isdisjoint(token.partition("=")[0] for token in argv) for argv in _commands(part))


def fits(argv: Sequence[str], group: click.Group, again: bool) -> bool:
    """Returns whether fleet takes a command line. Its files must exist or have been typed, the inventory must have its
    hosts, and no secret may be masked in it. A condition that cannot be checked counts as met."""
    typed = the_line().typed
    if any(token.endswith("***") for token in argv):
        return False
    if tuple(argv) == typed:
        return again
    if any(map(_ANSWERS.fullmatch, argv)) or (len(argv) == 2 and argv[1] in VERBS):
        return True  # a verb without arguments is only mentioned
    try:
        given = parsed(argv, group)
    except (click.ClickException, FleetError):
        return any(_HOLE.fullmatch(token) for token in argv) and _known(argv, group)
    except Exception:  # fleet was replaced while it ran: a verb's module is another version's, or gone
        return True
    verb = given[-1]
    values = [verb.params[name] for name in FILES.get(str(verb.info_name), ()) if not verb.params.get("module")]
    named = [str(value) for each in values for value in (each if isinstance(each, tuple | list) else [each]) if value]
    here = all(_is_here(name, typed) for name in named)
    known = verb.info_name in NEW_HOSTS or _has_hosts(settings_of(given[0]))
    return here and known and (again or not _same(given, group))


def _leaks(argv: Sequence[str]) -> bool:
    """Returns whether a command line contains a secret."""
    from fleet.inventory.secret import masked_argv

    own = [token.partition("=")[2] or "-" if token.partition("=")[0] in OWN else token for token in argv]
    tokens = [token for token in own if not token.endswith(("=", "=..."))]
    return masked_argv(tokens) != tokens


def _is_here(name: str, typed: Sequence[str]) -> bool:
    known = name == "-" or _HOLE.fullmatch(name) or os.path.normpath(name) in map(os.path.normpath, typed)
    return bool(known) or os.path.lexists(os.path.expanduser(name))


def _has_hosts(settings: Settings) -> bool:
    """Returns whether the inventory has the hosts of -w and -x. Reads only the inventory of the running line (see
    Line.here). Returns True for another inventory, because a node may have sent its path."""
    from fleet.inventory.select import select

    hosts, exclude = settings.hosts, settings.exclude
    if settings.on != INVENTORY or settings.inventory != settings_of().inventory or not (hosts or exclude):
        return True
    whole, names = the_line().here
    if _HOLE.fullmatch(hosts or exclude or "") or whole is None or (hosts in names and not exclude):
        return True
    try:
        select(whole, hosts, exclude, given=lambda operand: whole.names if _is_elsewhere(operand) else None)
    except FleetError:
        return False
    return True


def _is_elsewhere(operand: str) -> bool:
    return operand[:1] in "-^" or operand in ("@failed", "@unfit")


def _known(argv: Sequence[str], group: click.Group) -> bool:
    """Returns whether a line with placeholders has a verb of fleet and only options of that verb."""
    params, verb = [*group.params], None
    for token in argv[1:]:
        if token == "--":
            break
        name = one_spelling(token.partition("=")[0])
        if token.startswith("-") and not any(name in (*param.opts, *param.secondary_opts) for param in params):
            return False
        if verb is None and (verb := group.get_command(click.Context(group), name)) is not None:
            params += verb.params
    return verb is not None


def _same(given: Sequence[click.Context], group: click.Group) -> bool:
    """Returns whether the running line has the same meaning as these contexts."""
    with suppress(click.ClickException, FleetError):
        return _meaning(given) == _meaning(parsed(the_line().typed, group))
    return False


def _meaning(given: Sequence[click.Context]) -> list[Any]:
    return [settings_of(given[0]), *((ctx.info_name, ctx.params, ctx.args) for ctx in given[1:])]
