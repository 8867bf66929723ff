"""Options of `fleet launch` that engines declare (`Engine.options`), as click has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from fleet.cli.command import Verb
from fleet.engines import ENGINES
from fleet.engines.base import Option

F = TypeVar("F", bound=Callable[..., Any])


class EngineOption(click.Option):
    """An option that means something to one engine, or a few."""

    def __init__(self, option: Option) -> None:
        kind: dict[str, Any] = {"is_flag": option.metavar is None and not option.choices, "multiple": option.many}
        if option.choices:
            kind["type"] = click.Choice(option.choices)
        super().__init__([f"--{option.name}"], help=option.help, metavar=option.metavar, **kind)


def declared(engines: Iterable[str]) -> dict[str, tuple[EngineOption, list[str]]]:
    """Parameter -> (the option as the first engine declares it, all engines that have it)."""
    found: dict[str, tuple[EngineOption, list[str]]] = {}
    for engine in engines:
        for option in map(EngineOption, ENGINES.get(engine).options):
            found.setdefault(str(option.name), (option, []))[1].append(engine)
    return found


def sections(options: dict[str, tuple[EngineOption, list[str]]]) -> dict[str, list[str]]:
    """Heading -> parameters, for Verb."""
    found: dict[str, list[str]] = {}
    for name, (_, engines) in options.items():
        found.setdefault(f"For --engine {' or '.join(engines)}", []).append(name)
    return found


OWN = declared(ENGINES.own)


def engine_options(command: F) -> F:
    """Decorator: adds those of fleet's own engines."""
    for option, _ in reversed(OWN.values()):
        command.__dict__.setdefault("__click_params__", []).append(option)
    return command


class Launch(Verb):
    """The verb's command: where another package's engine is named, it has that one's options, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for word, behind in zip(args, [*args[1:], ""], strict=False):
            engine = behind if word == "--engine" else word.removeprefix("--engine=")
            if engine != word and engine not in ENGINES.own and engine in ENGINES.names:
                known = {param.name for param in self.params}
                new = {name: found for name, found in declared([engine]).items() if name not in known}
                self.params += [option for option, _ in new.values()]
                self.sections.update(sections(new))
        return super().parse_args(ctx, args)


def take(given: dict[str, Any]) -> dict[str, Any]:
    """Takes out of a command's parameters those of an engine: parameter -> value, of those that were given."""
    options = [param for param in click.get_current_context().command.params if isinstance(param, EngineOption)]
    values = {str(option.name): given.pop(str(option.name)) for option in options}
    return {name: value for name, value in values.items() if value not in (None, False, ())}
