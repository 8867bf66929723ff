"""Translates lines of other launchers into `fleet launch`'s arguments, whole: each word has a meaning there, or fleet
does itself what it means, or nothing is proposed."""

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


class Known(NamedTuple):
    """Describes an option of a tool. takes: "=" where a value follows, "=?" where one may. passed: on, as it is."""

    tool: str
    name: str
    takes: str
    passed: bool


@cache
def options_of(*tools: str) -> Mapping[str, Known]:
    """Returns all that tools have, by their names without dashes, short ones too; a later tool's goes over others."""
    found = dict[str, Known]()
    for tool in tools:
        for plus, name, takes, short in re.findall(r"(\+?)([\w-]+)(=?\??)(?:\|(\w+))?", OPTIONS.get(tool, "")):
            found |= dict.fromkeys((name, short or name), Known(tool, name, takes, bool(plus)))
    return found


def launch_words(words: Sequence[str]) -> list[str] | None:
    """Returns `fleet launch`'s arguments for a whole line of another launcher's, or of Python's; None where it is
    neither. UsageError, with the way out, for a word that has no translation."""
    env = list(takewhile(_ASSIGNED.fullmatch, words))
    line = list(words[len(env) :])
    if python := line and PYTHON.fullmatch(PurePosixPath(line[0]).name):
        line = list(dropwhile("-u".__eq__, line[1:]))
    module = line[:1] == ["-m"]
    begin = line[1:] if module else [PurePosixPath(line[0]).name, *line[1:]] if line else []
    key = next((key for key in (" ".join(begin[:2]), *begin[:1]) if key in BEGIN), None)
    script = python and module or (python or env) and line and re.fullmatch(r"[^-].*\.py", line[0])
    if not (key or script):
        return None
    path = words[len(env)]
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
        raise UsageError(f"{key}: no script stands behind it", hint="see fleet launch --help")
    return [*given, *(["--engine", engine] if engine != DEFAULT else []), *options, *command]


def _env(words: Sequence[str]) -> Iterator[str]:
    from fleet.inventory.secret import SECRET  # a misspelt verb needs no inventory

    for name, value in (word.split("=", 1) for word in words):
        if SECRET.search(name):
            raise UsageError(f"{name} may be a secret, which no hint repeats", hint=f"export it, and give --env {name}")
        yield from ("--env", f"{name}={value}")


def carried(
    options: Mapping[str, Known], words: Sequence[str], ours: Mapping[str, bool] = {}
) -> tuple[list[str], list[str]]:
    """(options of theirs as `fleet launch` has them, the script and all behind it). UsageError for one that has no
    translation. ours: fleet's own options, which stay -> whether a value follows."""
    made, rest = list[list[str]](), list(words)
    while rest and rest[0][:1] == "-":
        typed, equals, value = _split(options, rest.pop(0))
        own, known = ours.get(typed.replace("_", "-")), options.get(bare(typed))
        if typed == "--":
            break
        if own is None and known is None:
            raise UsageError(f"{typed}: no such option there", hint="what is the script's own stands behind it")
        needs = own if own is not None else known is not None and known.takes == "="
        if needs and not equals:
            if not rest:
                raise UsageError(f"{typed}: its value is missing", hint="see fleet launch --help")
            value = rest.pop(0)
        if own is not None or known is None:
            made.append(_option(typed, value if needs else None))
        elif known.name == "module" and needs:
            return [*chain(*made), "-m"], [value, *rest]
        else:
            fleets = as_fleets(typed, known, value if needs or equals else None)
            made += [fleets] if fleets not in made else []
    return [*chain(*made)], rest


def as_fleets(typed: str, known: Known, value: str | None) -> list[str]:
    """Returns an option, and its value, as `fleet launch` has them: [] where fleet does that itself."""
    name = SAME.get(known.name, known.name)
    why, instead = (REFUSED_IN_JOBS if known.tool == "sbatch" else REFUSED).get(name, ("", ""))
    if value == "":
        raise UsageError(f"{typed}: its value is empty", hint="is a variable in it not set?")
    if known.passed:
        option = typed if typed[:2] == "--" else f"--{name}"
        return [
            f"{'--sbatch-arg' if known.tool == 'sbatch' else '--engine-arg'}={option}" + (f"={value}" if value else "")
        ]
    if name == "rdzv-endpoint":
        address, port = (
            as_fleets(typed, Known(known.tool, part, "=", False), it) if it else []
            for part, it in zip(("master-addr", "master-port"), endpoint(str(value)), strict=True)
        )
        return address + port
    if (exact := EXACT.get((name, value or ""))) is not None or (instead == ITSELF and name != "rdzv-backend"):
        return [*(exact or ())]
    if write := _INSTEAD.match(instead):
        return _option(write[1], value or write[2])
    if why:
        raise UsageError(f"{typed}: {why}", hint=instead)
    if name in VALUES and not re.fullmatch(VALUES[name][0], value or ""):
        raise UsageError(f"{typed} {value}: fleet takes no such value", hint=VALUES[name][1])
    return _option(SHORT.get(name, f"--{name}"), value)


def endpoint(text: str) -> tuple[str, str | None]:
    """Splits HOST[:PORT]."""
    address, colon, port = text.rpartition(":")
    whole = not colon or not port.isdecimal()
    return (text if whole else address).strip("[]"), None if whole else port


def bare(option: str) -> str:
    """Returns the name of an option, with dashes inside and none in front."""
    return option.lstrip("-").replace("_", "-")


def _split(options: Mapping[str, Known], word: str) -> tuple[str, str, str]:
    """(an option, "=" where a value is in the word, the value)."""
    option, equals, value = word.partition("=")
    attached = word[1:2] != "-" and bare(option) not in options and word[1:2] in options  # -N2
    return (word[:2], "=", word[2:]) if attached else (option, equals, value)


def _option(name: str, value: str | None) -> list[str]:
    """Returns an option's arguments as one would type them, whatever the value starts with."""
    return [name] if value is None else [f"{name}={value}"] if value[:1] == "-" else [name, value]
