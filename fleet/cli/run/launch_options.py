"""Holds options of `fleet launch` that other modules declare: those of engines (`Engine.options`), those that --from
and --again take from an earlier run, and those of other launchers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from fleet.cli.context import ask
from fleet.cli.line.command import F, FleetOption, OneOf, Verb, completed, one_spelling, was_typed
from fleet.cli.line.line import Settings, settings_of, the_line
from fleet.cli.line.slips import values_of
from fleet.engines import ENGINES
from fleet.engines.base import Option
from fleet.engines.launchers import SAME
from fleet.engines.translate import UnknownOption, carried, each_option, options_of
from fleet.engines.translate import endpoint as parts_of
from fleet.errors import InventoryError, UsageError
from fleet.model import Host, grouped
from fleet.requests.launch import Launch
from fleet.sources import SOURCES

if TYPE_CHECKING:
    from fleet.ops.run.find.again import Recorded

# Matches a value of --wait: a token like this after --wait is never the script. A playbook writes such a value, too.
PATIENCE = re.compile(r"true|false|[+-]?\.?[0-9].*", re.DOTALL)
# options of the command line -> their names in fleet.api
IN_API = {"no_preflight": "preflight", "env_file": "env"}


class DeclaredOption(FleetOption):
    """An option that an engine or a source declares."""

    def __init__(self, option: Option, section: str) -> None:
        kind: dict[str, Any] = {"multiple": option.many}
        if option.metavar is None and not option.choices:
            kind["is_flag"] = True  # click would take False for a value
        if option.choices:
            kind["type"] = OneOf(option.choices)
        super().__init__([f"--{option.name}"], help=option.help, metavar=option.metavar, section=section, **kind)


class EngineOption(DeclaredOption):
    """An option that has a meaning for one engine, or for some."""


class SourceOption(DeclaredOption):
    """An option for a request in a source's queue."""


def declared(engines: Iterable[str]) -> list[EngineOption]:
    """Returns the options of engines, each one once, as the first engine declares it."""
    found = grouped((option.name, (engine, option)) for engine in engines for option in ENGINES.get(engine).options)
    return [
        EngineOption(having[0][1], f"For --engine {' or '.join(engine for engine, _ in having)}")
        for having in found.values()
    ]


def requesting() -> list[SourceOption]:
    """Returns the options of sources, each once, as the first source declares it."""
    each = [(option, source) for source in map(SOURCES.get, SOURCES.own) for option in source.options]
    first = {option.name: SourceOption(option, f"For --on {source.asked}") for option, source in reversed(each)}
    return [first.pop(option.name) for option, _ in each if option.name in first]


OWN = declared(ENGINES.own)  # options of fleet's own engines
ASKING = requesting()  # options of fleet's own sources, for a request in a queue


def engine_options(command: F) -> F:
    """Decorator: adds the options of fleet's own engines and sources."""
    command.__dict__.setdefault("__click_params__", []).extend(reversed([*OWN, *ASKING]))
    return command


class LaunchCommand(Verb):
    """The command `fleet launch`. If another package's engine is named, it has the options of that engine, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for engine in values_of("--engine", args):
            if engine not in ENGINES.own and engine in ENGINES.names:
                known = {param.name for param in self.params}
                new = [option for option in declared([engine]) if option.name not in known]
                self.params += new
                self.sections += tuple(str(option.section) for option in new)
        takes = {
            name: not (param.is_flag or param.count)
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for name in (*param.opts, *param.secondary_opts)
        }
        takes |= {f"--{theirs}": takes[f"--{name}"] for theirs, name in SAME.items() if f"--{name}" in takes}
        return super().parse_args(ctx, self.queued(ctx, patient(args, takes), takes))

    def queued(self, ctx: click.Context, args: list[str], takes: Mapping[str, bool]) -> list[str]:
        """Returns the arguments. With --on slurm, sbatch's own options before the script are translated to fleet's.
        takes: option -> whether it takes a value."""
        on, options = settings_of(ctx).on, options_of("sbatch")
        with suppress(UsageError):
            for typed, _, value in each_option(options, [*args], takes):
                on = str(value) if typed == "--on" else on
        if on != "slurm":
            return args
        try:
            tokens, command = carried(options, args, takes)
        except UnknownOption:  # click reports the option
            return args
        return [*tokens, *command]


def patient(args: Sequence[str], takes: Mapping[str, bool]) -> list[str]:
    """Returns the arguments. A --wait that comes before the script and has no value gets the value "true". takes:
    option -> whether it takes a value."""
    found, rest = list[str](), list(args)
    while rest and rest[0][:1] == "-" and rest[0] != "--":
        found.append(rest.pop(0))
        name, equals, _ = found[-1].partition("=")
        if (not equals and takes.get(spelled(name))) or _cluster_takes(found[-1], takes):
            is_bare = spelled(name) == "--wait" and not (rest and PATIENCE.fullmatch(rest[0]))
            found += ["true"] if is_bare else rest[:1]
            rest = rest if is_bare else rest[1:]
    return [*found, *rest]


def _cluster_takes(token: str, takes: Mapping[str, bool]) -> bool:
    """Returns whether the token holds several short options, such as -vw, of which the last one takes the next token as
    its value."""
    if token[:2] == "--" or spelled(token) in takes:
        return False
    first = next((n for n, letter in enumerate(token) if n and takes.get(f"-{letter}")), 0)
    return bool(first) and first == len(token) - 1


def take(given: dict[str, Any], kind: type[DeclaredOption] = EngineOption) -> dict[str, Any]:
    """Removes the options of a kind from a command's parameters. Returns parameter -> value of those that were
    given."""
    options = [param for param in click.get_current_context().command.params if isinstance(param, kind)]
    values = {str(option.name): given.pop(str(option.name)) for option in options}
    return {name: value for name, value in values.items() if value not in (None, False, ())}


def port_of(text: str) -> int:
    """Returns the port that --master-port names; 0 for "auto". Raises UsageError if the text is no port."""
    if text != "auto" and not (text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536):
        raise UsageError(f"--master-port {text}: not a port", hint="1 to 65535, or auto")
    return 0 if text == "auto" else int(text)


# -- repeat an earlier run's command
def again_options(command: F) -> F:
    """Decorator: adds --again, --from and --yes."""
    once_more: dict[str, Any] = {"cls": FleetOption, "section": "Once more"}
    about: dict[str, Any] = {**once_more, "metavar": "RUN", "shell_complete": completed("run_here")}
    for option, name, daily, text in (
        ("--again", "again", True, "Launch what RUN was once more, on the inventory as it is now."),
        ("--from", "from_", False, "Launch what RUN was once more, on the hosts as they were described then."),
    ):
        command = click.option(option, name, help=text, daily=daily, **about)(command)
    text = "With both: do not ask, though the run's folder is not as this user's fleet wrote it."
    return click.option("-y", "--yes", is_flag=True, help=text, **once_more)(command)


def script_or_run(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Checks SCRIPT, as click's callback: it may be missing if an earlier run has one."""
    runs = (ctx.params.get("again"), ctx.params.get("from_"))
    if value is None and runs == (None, None) and not ctx.resilient_parsing:
        raise click.MissingParameter(ctx=ctx, param=param)
    return value


def earlier(again: str | None, from_: str | None, yes: bool, given: Mapping[str, Any]) -> Recorded | None:
    """Returns the run to repeat, if there is one. The run's hosts become those of this command line, unless -i or -w
    selects others. yes: the run is trusted even if another user wrote it. Raises UsageError if both --again and --from
    are given."""
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

        the_line().inventory = run.everyone(read_env(given["env_file"], given["env"], (), os.environ)[0])
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


def changed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that this command line gives, under the names that launch() of fleet.api has for them."""
    ctx = click.get_current_context()
    typed = {name for name in ctx.params if was_typed(ctx, name)}
    typed |= {IN_API[name] for name in typed & IN_API.keys()}
    known = Launch.__dataclass_fields__
    return {
        name: value
        for name, value in options.items()
        if name in typed or name not in known or value not in (None, known[name].default, {})
    }


# -- options of other launchers that mean the same, or nearly: fleet/engines/launchers.py
def spelled(token: str) -> str:
    """Returns the name that `fleet launch` has for an option. Leading dashes stay."""
    name = one_spelling(token)
    bare = name.lstrip("-")
    return name.removesuffix(bare) + SAME.get(bare, bare)


def theirs(command: F) -> F:
    """Decorator: adds other launchers' options whose values fleet has in another form; see translate()."""
    for option, metavar in (("--rdzv-endpoint", "ADDR[:PORT]"), ("--num-processes", "N")):
        command = click.option(option, metavar=metavar, hidden=True, help="See fleet help launch.")(command)
    return command


def translate(given: dict[str, Any], hosts: Sequence[Host]) -> None:
    """Translates the options of theirs() to fleet's. hosts: the hosts of the run."""
    endpoint, total = given.pop("rdzv_endpoint"), given.pop("num_processes")
    if endpoint is not None:
        address, port = parts_of(endpoint)
        _put(given, "--rdzv-endpoint", "master_addr", address)
        if port is not None:
            _put(given, "--rdzv-endpoint", "master_port", port)
    if total is not None:
        _put(given, "--num-processes", "nproc_per_node", _each(total, hosts))


def _put(given: dict[str, Any], option: str, name: str, value: str | None) -> None:
    fleets = f"--{name.replace('_', '-')}"
    if given[name] not in (None, "auto", value):
        raise UsageError(f"{option} and {fleets} say different things", hint="leave one of the two away")
    given[name] = value or given[name]


def _each(total: str, hosts: Sequence[Host]) -> str | None:
    """Returns the ranks on each host, for `total` ranks on all hosts, as accelerate counts; None if the inventory's
    slots add up to `total`. Raises UsageError if the hosts cannot have equally many ranks."""
    slots = sum(host.slots or 0 for host in hosts)
    if not total.isdecimal() or not int(total) or not hosts or (int(total) != slots and int(total) % len(hosts)):
        raise UsageError(
            f"--num-processes {total}: cannot be shared out to {len(hosts)} hosts evenly",
            hint="--nproc-per-node N for each host, or 'slots' in the inventory",
        )
    return None if int(total) == slots else str(int(total) // len(hosts))
