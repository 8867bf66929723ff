"""Translates whole lines of other launchers into arguments of `fleet launch`. Proposes a line only if each token has a
translation, or requests what fleet does itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, dropwhile, takewhile
from pathlib import PurePosixPath
from typing import NamedTuple

from fleet.engines.launchers import (
    BEGIN,
    EXACT,
    ITSELF,
    OPTIONS,
    REFUSED,
    REFUSED_IN_JOBS,
    SAME,
    SHORT,
    VALUES,
)
from fleet.engines.names import DEFAULT
from fleet.errors import UsageError

_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")
_INSTEAD = re.compile(r"write (--?[\w-]+) (\S+)")


class UnknownOption(UsageError):
    """An option is in no table."""


class Known(NamedTuple):
    """Describes an option of a tool. takes: "=" if it has a value, "=?" if it may have one, or "". passed: fleet passes
    the option on unchanged."""

    tool: str
    name: str
    takes: str
    passed: bool


@cache
def options_of(*tools: str) -> Mapping[str, Known]:
    """Returns all options of the tools, by their long and short names, without dashes. A later tool overrides the
    others."""
    found = dict[str, Known]()
    for tool in tools:
        for plus, name, takes, short in re.findall(r"(\+?)([\w-]+)(=?\??)(?:\|(\w+))?", OPTIONS.get(tool, "")):
            found |= dict.fromkeys((name, short or name), Known(tool, name, takes, bool(plus)))
    return found


def launch_arguments(tokens: Sequence[str]) -> list[str] | None:
    """Returns `fleet launch`'s arguments for a whole line of another launcher or of Python; None for any other line.
    Raises UsageError, with a hint, for a token that has no translation."""
    env = list(takewhile(_ASSIGNED.fullmatch, tokens))
    line = list(tokens[len(env) :])
    if python := line and PYTHON.fullmatch(PurePosixPath(line[0]).name):
        line = list(dropwhile("-u".__eq__, line[1:]))
    module = line[:1] == ["-m"]
    begin = line[1:] if module else [PurePosixPath(line[0]).name, *line[1:]] if line else []
    key = next((key for key in (" ".join(begin[:2]), *begin[:1]) if key in BEGIN), None)
    script = python and module or (python or env) and line and re.fullmatch(r"[^-].*\.py", line[0])
    if not (key or script):
        return None
    path = tokens[len(env)]
    given = [*_env(env), *(["--python", path] if python and "/" in path else [])]
    if key is None:
        return [*given, *line]
    if key == "torch.distributed.launch" and not {"--use_env", "--use-env"} & {*begin}:
        raise UsageError(f"{key} gives the script --local-rank", hint="a script that reads LOCAL_RANK needs none")
    engine = "command" if BEGIN[key] == "mpirun" else BEGIN[key]
    options, command = carried(options_of(BEGIN[key]), begin[len(key.split()) :])
    if "/" in path and not python:
        raise UsageError(f"{path}: the inventory or --python has an environment", hint=f"write {key} without a path")
    if not command:
        raise UsageError(f"{key}: no script follows it", hint="see fleet launch --help")
    return [*given, *(["--engine", engine] if engine != DEFAULT else []), *options, *command]


def _env(tokens: Sequence[str]) -> Iterator[str]:
    from fleet.inventory.secret import SECRET  # imported late: a misspelt verb needs no inventory

    for name, value in (token.split("=", 1) for token in tokens):
        if SECRET.search(name):
            raise UsageError(f"{name} may be a secret, which no hint repeats", hint=f"export it, and give --env {name}")
        yield from ("--env", f"{name}={value}")


def carried(
    options: Mapping[str, Known], tokens: Sequence[str], ours: Mapping[str, bool] = {}
) -> tuple[list[str], list[str]]:
    """Returns (the options of the tokens in the form of `fleet launch`, the script and all after it). Raises UsageError
    for an option without a translation. ours: fleet's own option -> whether it has a value; these options stay."""
    made, rest = list[list[str]](), list(tokens)
    for typed, known, value in each_option(options, rest, ours):
        if known is None and bare(typed) == "sbatch-arg" and value:
            made.append(_passed_on(options, value) or typed_option(typed, value))
        elif known is None:
            made.append(typed_option(typed, value))
        elif known.name == "module" and known.takes == "=":
            return [*chain(*made), "-m"], [str(value), *rest]
        else:
            fleets = as_fleets(typed, known, value)
            made += [fleets] if fleets not in made else []
    return [*chain(*made)], ["--", *rest] if rest and rest[0][:1] == "-" else rest


def _passed_on(options: Mapping[str, Known], argument: str) -> list[str]:
    """Returns fleet's own options for one --sbatch-arg, or [] if --sbatch-arg stays as it is."""
    try:
        tokens, more = carried(options, tokens_of(argument))
    except UsageError:  # the module that writes the script reports the error
        return []
    return [] if more else tokens


def tokens_of(argument: str) -> list[str]:
    """Splits one --sbatch-arg into an option and its value, which may have blanks."""
    tokens = argument.split(None, 1)
    return [argument] if not tokens or "=" in tokens[0] else tokens


def each_option(
    options: Mapping[str, Known], rest: list[str], ours: Mapping[str, bool] = {}
) -> Iterator[tuple[str, Known | None, str | None]]:
    """Removes the options at the beginning of `rest`, and yields each: (the typed name, the Known option or None for
    one of `ours`, the value). Raises UnknownOption for other options, and UsageError if a value is missing."""
    while rest and rest[0][:1] == "-":
        typed, equals, value = _split(options, ours, rest.pop(0))
        own, known = ours.get(typed.replace("_", "-")), known_as(options, typed)
        if typed == "--":
            return
        if own and known is not None and not (known.takes or equals or (rest and rest[0].isdecimal())):
            own = None  # sbatch's --requeue is a flag, and fleet's has a number
        glued = equals and typed[1:2] != "-"
        if own is False and equals and not glued and known is not None and known.takes:
            own = None  # sbatch's --exclusive may have a value
        if own is False and glued and known is not None and known.takes and not _flags(value, ours):
            if known.name != "module":
                hint = f"write {typed} alone, or --{known.name}={value}"
                raise UsageError(f"{typed}{value}: {typed} is fleet's own, and has no value", hint=hint)
            own = None
        if own is None and known is None:
            raise UnknownOption(f"{typed}: no such option there", hint="the script's own options come after it")
        flag = own is False or (own is None and known is not None and not known.takes)
        if flag and glued:
            rest.insert(0, f"-{value}")  # -Hk
            equals = ""
        elif flag and equals:
            raise UsageError(f"{typed} has no value", hint=f"write {typed}")
        needs = own if own is not None else known is not None and known.takes == "="
        if needs and not equals:
            if not rest:
                raise UsageError(f"{typed}: its value is missing", hint="see fleet launch --help")
            equals, value = "=", rest.pop(0)
        yield typed, None if own is not None else known, value if equals else None


def as_fleets(typed: str, known: Known, value: str | None) -> list[str]:
    """Returns an option, and its value, in the form of `fleet launch`, or [] if fleet does itself what it requests."""
    name, sbatch = SAME.get(known.name, known.name), known.tool == "sbatch"
    why, instead = (REFUSED_IN_JOBS if sbatch else REFUSED).get(name, ("", ""))
    if value == "":
        raise UsageError(f"{typed}: its value is empty", hint="is a variable in it not set?")
    if known.passed or (known.takes == "=?" and value and not why):
        option = f"--{name}" if sbatch or typed[:2] != "--" else typed
        return [f"{'--sbatch-arg' if sbatch else '--engine-arg'}={option}" + (f"={value}" if value else "")]
    if name == "rdzv-endpoint":
        address, port = (
            as_fleets(typed, Known(known.tool, part, "=", False), it) if it else []
            for part, it in zip(("master-addr", "master-port"), endpoint(str(value)), strict=True)
        )
        return address + port
    if (exact := EXACT.get((name, value or ""))) is not None or (instead == ITSELF and name != "rdzv-backend"):
        return [*(exact or ())]
    if not sbatch and (write := _INSTEAD.match(instead)):
        return typed_option(write[1], value or write[2])
    if why:
        raise UsageError(f"{typed}: {why}", hint=instead)
    if name in VALUES and not re.fullmatch(VALUES[name][0], value or ""):
        raise UsageError(f"{typed} {value}: fleet takes no such value", hint=VALUES[name][1])
    return typed_option(SHORT.get(name, f"--{name}"), value)


def known_as(options: Mapping[str, Known], typed: str) -> Known | None:
    """Returns the option that was typed, or None if it is unknown. For sbatch, an unambiguous beginning of a name is
    enough, as for getopt_long."""
    name = bare(typed)
    if name in options or typed[:2] != "--" or not name:
        return options.get(name)
    begun = {it.name: it for known, it in options.items() if known.startswith(name) and it.tool == "sbatch"}
    return next(iter(begun.values())) if len(begun) == 1 else None


def endpoint(text: str) -> tuple[str, str | None]:
    """Splits HOST[:PORT] into (host, port or None)."""
    address, colon, port = text.rpartition(":")
    whole = not colon or not port.isdecimal()
    return (text if whole else address).strip("[]"), None if whole else port


def bare(option: str) -> str:
    """Returns the name of an option without leading dashes, and with dashes inside."""
    return option.lstrip("-").replace("_", "-")


def _split(options: Mapping[str, Known], ours: Mapping[str, bool], token: str) -> tuple[str, str, str]:
    """Returns (option, "=" if the token has a value, the value)."""
    option, equals, value = token.partition("=")
    short = token[1:2] != "-" and len(option) > 2 and (token[1:2] in options or token[:2] in ours)
    attached = short and bare(option) not in options  # -N2, -vq
    return (token[:2], "=", token[2:]) if attached else (option, equals, value)


def _flags(flags: str, ours: Mapping[str, bool]) -> bool:
    return all(ours.get(f"-{letter}") is False for letter in flags)


def typed_option(name: str, value: str | None) -> list[str]:
    """Returns the arguments for an option. A value that begins with a dash is joined by '='."""
    return [name] if value is None else [f"{name}={value}"] if value[:1] == "-" else [name, value]
