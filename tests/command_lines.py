"""Whether fleet takes a command line, without running it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fleet.cli.line.command import SETTINGS, rest_of
from fleet.cli.line.verbs import VERBS as VERBS
from fleet.cli.main import cli
from fleet.cli.verbs.play import CliVerbs
from fleet.cli.verbs.play import command_of as command_of
from fleet.errors import FleetError
from fleet.playbook.read import load, parse


def accept(line: str) -> click.Context:
    """The context of the verb; click.UsageError or FleetError unless fleet takes the line."""
    words = shlex.split(line)
    if ">" in words:
        words = words[: words.index(">")]
    ctx = cli.make_context("fleet", words[1:])
    while isinstance(ctx.command, click.Group):
        name, command, rest = ctx.command.resolve_command(ctx, rest_of(ctx))
        assert command is not None
        ctx = command.make_context(name, rest, parent=ctx)
    return ctx


def parse_options(command: click.Command, *words: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the options that a command reads in these words, and the words that are none."""
    given, rest, _ = command.make_parser(click.Context(command, **SETTINGS)).parse_args([*words])
    return given, rest


def steps(playbook: str | Path, variables: Mapping[str, str] | None = None) -> Any:
    """Returns the steps of a playbook, a text or a file, as `fleet play` reads it."""
    if isinstance(playbook, Path):
        return load(playbook, CliVerbs(), variables or {})
    return parse(playbook, "p", CliVerbs(), variables or {})


QUOTED = re.compile(r"['`](fleet (?:\"[^\"]*\"|[^'`\"])*)['`]")
PLACES = re.compile(r"\b(N|S|PORT)\b")  # where a number goes
BARE = re.compile(r"(?<![\w./'`-])fleet [^;\n]*")


def commands_in(hint: str) -> list[str]:
    """What a hint has to be pasted. A command that more words follow stands in quotes; another one goes on to the next
    ";", or to the end."""
    quoted = [found[1] for found in QUOTED.finditer(hint)]
    bare = [found[0].strip().rstrip(").") for found in BARE.finditer(QUOTED.sub("", hint))]
    return [line for line in (*quoted, *bare) if set(line.split()[1:2]) & known_words()]


def known_words() -> set[str]:
    """What may stand behind "fleet" in a command: in prose it is the program's name."""
    options = {option for param in cli.params for option in param.opts}
    return {*VERBS, *options}


def wrong_hints(text: str) -> list[str]:
    """Commands in the hints of what was printed that fleet would not take."""
    hints = [line.strip().removeprefix("hint: ") for line in text.splitlines() if line.startswith("  hint: ")]
    wrong = list[str]()
    for line in (line for hint in hints for line in commands_in(hint)):
        try:
            accept(PLACES.sub("2", line))
        except (click.ClickException, FleetError, ValueError) as error:
            wrong.append(f"{line}: {error}")
        except click.exceptions.Exit:
            pass  # --help
    return wrong
