"""Options of `fleet launch` that come from elsewhere: those of engines (`Engine.options`), and what --from and --again
take from an earlier run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fleet.cli.context import ask
from fleet.cli.inventory import use_inventory
from fleet.cli.line.command import F, FleetOption, OneOf, Verb, completed
from fleet.cli.line.options import Settings, settings_of
from fleet.engines import ENGINES
from fleet.engines.base import Option
from fleet.errors import InventoryError, UsageError
from fleet.model import grouped
from fleet.requests.launch import Launch
from fleet.sources import SOURCES

if TYPE_CHECKING:
    from fleet.ops.run.find.again import Recorded

# options of the command line that are called otherwise in fleet.api
ELSEWHERE = {"no_preflight": "preflight", "env_file": "env"}


class DeclaredOption(click.Option):
    """An option that an engine or a source declares."""

    def __init__(self, option: Option) -> None:
        kind: dict[str, Any] = {"multiple": option.many}
        if option.metavar is None and not option.choices:
            kind["is_flag"] = True  # False makes a value that looks like an option one
        if option.choices:
            kind["type"] = OneOf(option.choices)
        super().__init__([f"--{option.name}"], help=option.help, metavar=option.metavar, **kind)


class EngineOption(DeclaredOption):
    """It means something to one engine, or a few."""


class SourceOption(DeclaredOption):
    """The option requests something in a source's queue."""


def declared(engines: Iterable[str]) -> dict[str, tuple[EngineOption, list[str]]]:
    """Parameter -> (the option as the first engine declares it, all engines that have it)."""
    found: dict[str, tuple[EngineOption, list[str]]] = {}
    for engine in engines:
        for option in map(EngineOption, ENGINES.get(engine).options):
            found.setdefault(str(option.name), (option, []))[1].append(engine)
    return found


def sections(options: dict[str, tuple[EngineOption, list[str]]]) -> dict[str, list[str]]:
    """Heading -> parameters, for Verb."""
    return grouped((f"For --engine {' or '.join(engines)}", name) for name, (_, engines) in options.items())


OWN = declared(ENGINES.own)
ASKING = {name: [SourceOption(option) for option in SOURCES.get(name).options] for name in SOURCES.own}
ASKED = {f"For --on {SOURCES.get(name).asked}": [str(it.name) for it in given] for name, given in ASKING.items()}


def engine_options(command: F) -> F:
    """Decorator: adds those of fleet's own engines and sources."""
    for option in reversed([*(option for option, _ in OWN.values()), *chain.from_iterable(ASKING.values())]):
        command.__dict__.setdefault("__click_params__", []).append(option)
    return command


class LaunchCommand(Verb):
    """The verb's command: where another package's engine is named, it has that one's options, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for arg, following in zip(args, [*args[1:], ""], strict=False):
            engine = following if arg == "--engine" else arg.removeprefix("--engine=")
            if engine != arg and engine not in ENGINES.own and engine in ENGINES.names:
                known = {param.name for param in self.params}
                new = {name: found for name, found in declared([engine]).items() if name not in known}
                self.params += [option for option, _ in new.values()]
                self.sections.update(sections(new))
        return super().parse_args(ctx, args)


def take(given: dict[str, Any], kind: type[DeclaredOption] = EngineOption) -> dict[str, Any]:
    """Takes out of a command's parameters those of a kind: parameter -> value, of those that were given."""
    options = [param for param in click.get_current_context().command.params if isinstance(param, kind)]
    values = {str(option.name): given.pop(str(option.name)) for option in options}
    return {name: value for name, value in values.items() if value not in (None, False, ())}


# -- an earlier run's command once more
def again_options(command: F) -> F:
    """Decorator: adds both."""
    about: dict[str, Any] = {"cls": FleetOption, "metavar": "RUN", "shell_complete": completed("run_here")}
    for option, name, daily, text in (
        ("--again", "again", True, "Launch what RUN was once more, on the inventory as it is now."),
        ("--from", "from_", False, "Launch what RUN was once more, on the hosts as they were described then."),
    ):
        command = click.option(option, name, help=text, daily=daily, **about)(command)
    text = "With both: do not ask, though the run's folder is not as this user's fleet wrote it."
    return click.option("-y", "--yes", is_flag=True, help=text)(command)


def script_or_run(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The callback of SCRIPT, which may come from an earlier run."""
    runs = (ctx.params.get("again"), ctx.params.get("from_"))
    if value is None and runs == (None, None) and not ctx.resilient_parsing:
        raise click.MissingParameter(ctx=ctx, param=param)
    return value


def earlier(again: str | None, from_: str | None, yes: bool, given: Mapping[str, Any]) -> Recorded | None:
    """The run that is to be repeated, if there is one; from here on its hosts are those of this command line, unless -i
    or -w selects others. yes: it is trusted, even if another user wrote it. UsageError."""
    name = from_ if again is None else again
    if name is None:
        return None
    if None not in (again, from_):
        raise UsageError("--again and --from exclude each other", hint="--from takes the hosts as they were described")
    from fleet.ops.run.find.again import recorded

    settings = settings_of()
    run = recorded(name, given["runs_dir"], (lambda _: True) if yes or settings.dry_run else ask)
    if settings.transport == Settings.transport:
        settings.transport = run.transport
    if settings.inventory is None and from_:
        from fleet.ops.run.plan.options import read_env

        use_inventory(run.everyone(read_env(given["env_file"], given["env"], (), os.environ)[0]))
        settings.hosts = settings.hosts or run.selected
    elif settings.inventory is None and run.source and "FLEET_INVENTORY" not in os.environ:
        if not os.path.exists(run.source):
            raise InventoryError(
                f"run {run.run}: the inventory that it was started with, {run.source}, is not there any more",
                hint=f"'fleet launch --from {run.run}' takes the hosts as they were then; or name a file with -i",
            )
        settings.inventory = run.source
    settings.hosts = settings.hosts or run.narrowed
    return run


def changed(told: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those options of this command line that were given, as fleet.api's launch() takes them."""
    ctx = click.get_current_context()
    typed = {name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    typed |= {ELSEWHERE[name] for name in typed & ELSEWHERE.keys()}
    known = Launch.__dataclass_fields__
    return {
        name: value
        for name, value in told.items()
        if name in typed or name not in known or value not in (None, known[name].default, {})
    }
