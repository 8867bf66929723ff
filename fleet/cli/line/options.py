"""The common options: the same before and after the verb, the one after it wins."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

import click
from click.core import ParameterSource

from fleet.cli.line.command import CommonOption, F, FleetOption, OneOf, completed
from fleet.codec import hints
from fleet.errors import UsageError
from fleet.registry import Registry
from fleet.requests.option import COMPLETES, DAILY, FLAGS, HELP, METAVAR
from fleet.requests.reach import Reach
from fleet.requests.request import LIMITS, OptionError, Request
from fleet.sources import INVENTORY, SOURCES
from fleet.transport import DEFAULT, TRANSPORTS


@dataclass
class Settings:
    """Holds the values of the common options. It is in the root context's `meta`, one a command line."""

    inventory: str | None = None
    on: str = INVENTORY
    hosts: str | None = None
    exclude: str | None = None
    transport: str = DEFAULT
    fanout: int = Reach.fanout
    connect_timeout: float = Reach.connect_timeout
    dry_run: bool = False
    json: bool = False
    verbose: int = 0
    quiet: bool = False

    @property
    def silent(self) -> bool:
        """Nothing is printed except what was requested."""
        return self.quiet or self.json


def asked(request: type[Request], *names: str, **more: Mapping[str, Any]) -> Callable[[F], F]:
    """Decorator: adds the options that these fields of a request are, in this order. more: of a field, what only the
    command line knows."""

    def add(command: F) -> F:
        for name in reversed(names):
            flags, attrs = _declared(request, name, more.get(name, {}))
            command = click.option(*flags, name, cls=FleetOption, **attrs)(command)
        return command

    return add


def _declared(
    request: type[Request], name: str, more: Mapping[str, Any] = {}
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns how an option is typed, and click's other settings of it."""
    about = request.__dataclass_fields__[name].metadata
    attrs = {
        **_typed(request, name),
        "help": about[HELP],
        "metavar": about[METAVAR],
        "daily": about.get(DAILY, False),
        **more,
    }
    if completes := about.get(COMPLETES):
        attrs["shell_complete"] = completed(completes)
    flag = f"--{name.replace('_', '-')}"
    return about.get(FLAGS) or (f"{flag}/--no-{flag[2:]}" if attrs.get("default") is True else flag,), attrs


def _typed(request: type[Request], name: str) -> dict[str, Any]:
    """Returns its type and default, as click has them."""
    field, kind = request.__dataclass_fields__[name], hints(cast(Any, request))[name]
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    bases = [get_origin(each) or each for each in kinds]
    default: Any = field.default
    given: dict[str, Any] = {} if default in (MISSING, None, ()) else {"default": default}
    if bool in bases:
        return {"is_flag": True, **given}
    if LIMITS in field.metadata:
        return {"type": Limited(request, name, int if int in bases else float), **given}
    if bases[0] is Literal:
        return {"type": OneOf(get_args(kinds[0]))}
    if os.PathLike in bases and default is not None:
        return {"type": click.Path(path_type=Path), "default": Path(default)}
    return {"multiple": any(base in (Sequence, Collection, Mapping) for base in bases), **given}


class Limited(click.ParamType):  # type: ignore[type-arg]
    """A number of a request, which knows its limits."""

    def __init__(self, request: type[Request], field: str, kind: type[int] | type[float] = float) -> None:
        self.request, self.field, self.kind = request, field, kind
        self.name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = self.kind(value)
        except ValueError:
            number = value
        try:
            return self.request.fitted(self.field, number)
        except OptionError as error:
            raise click.UsageError(spelled_out(error).message, ctx) from None


def spelled_out(error: OptionError) -> UsageError:
    """The same for the option as it is written on a command line."""
    return UsageError(f"--{error.option.replace('_', '-')} {error.problem}", hint=error.hint)


class Named(OneOf):
    """A name of a registry; other packages' are looked up for one that is not fleet's own, for help and completion.
    more: names that mean something, and are not in there."""

    def __init__(self, registry: Registry[Any], *more: str) -> None:
        self.registry, self.more, self.case_sensitive = registry, more, True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.more, *self.registry.names)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        own = value in self.registry.own or value in self.more
        return str(value) if own else super().convert(value, param, ctx)


def runs_dir_option(said: str) -> Callable[[F], F]:
    """Decorator: the folder of runs on this machine."""
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option("--runs-dir", type=kind, default=Path("runs"), metavar="DIR", show_default=True, help=said)


def pairs(option: str, words: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE arguments; UsageError for anything else."""
    found = dict[str, str]()
    for pair in words:
        name, equals, found[name] = pair.partition("=")
        if not (name.isidentifier() and equals):
            raise UsageError(f"{option} {pair}: must be NAME=VALUE")
    return found


# in the root context's `meta`. TYPED: the command line's argv. BY_ITSELF: it is no step of a playbook. NONE_LIVE:
# all hosts have answered that none is live
_KEY, TYPED, BY_ITSELF, NONE_LIVE = "fleet.settings", "fleet.typed", "fleet.by-itself", "fleet.none-live"


def settings_of(ctx: click.Context | None = None) -> Settings:
    """The settings of the command line being run."""
    ctx = ctx or click.get_current_context()
    settings = ctx.find_root().meta.setdefault(_KEY, Settings())
    assert isinstance(settings, Settings)
    return settings


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    assert param.name
    if ctx.get_parameter_source(param.name) not in (ParameterSource.DEFAULT, None):
        # given twice, as to pdsh and clush: the hosts of both
        setattr(settings_of(ctx), param.name, ",".join(value) if param.multiple else value)


_OPTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "inventory": (
        ("-i", "--inventory"),
        {
            "metavar": "FILE",
            "help": "Inventory file, or 'lab' for the lab's.",
            "daily": True,
            "shell_complete": completed("inventory_file"),
        },
    ),
    "on": (
        ("--on",),
        {
            "type": Named(SOURCES, INVENTORY),
            "metavar": f"[{'|'.join((INVENTORY, *SOURCES.own))}]",
            "default": INVENTORY,
            "show_default": True,
            "help": "Where hosts come from: an inventory, or the Slurm allocation that this is in.",
            "daily": True,
        },
    ),
    "hosts": (
        ("-w", "--hosts"),
        {
            "metavar": "NODESET",
            "help": "Only these hosts: gpu[01-04], 10.0.0.1, @group, gpu1:0,2, ^FILE, -, @failed.",
            "multiple": True,
            "shell_complete": completed("nodeset"),
            "daily": True,
        },
    ),
    "exclude": (
        ("-x", "--exclude"),
        {
            "metavar": "NODESET",
            "help": "Not these hosts.",
            "multiple": True,
            "shell_complete": completed("nodeset"),
            "daily": True,
        },
    ),
    "transport": (
        ("--transport",),
        {
            "type": Named(TRANSPORTS),
            "metavar": f"[{'|'.join(TRANSPORTS.own)}]",  # those of other packages take long to look up
            "default": DEFAULT,
            "show_default": True,
            "help": "How hosts are reached: 'openssh', 'pdsh': by this machine's own; 'local' runs everything here.",
        },
    ),
    "fanout": _declared(Reach, "fanout"),
    "connect_timeout": _declared(Reach, "connect_timeout"),
    "dry_run": (("--dry-run",), {"is_flag": True, "help": "Show the plan, do nothing.", "daily": True}),
    "json": (("--json",), {"is_flag": True, "help": "JSON on stdout: one document; of a run, a line an event."}),
    "verbose": (("-v", "--verbose"), {"count": True, "help": "Say more."}),
    "quiet": (("-q", "--quiet"), {"is_flag": True, "help": "Print only what went wrong."}),
}


def common_options(command: F) -> F:
    """Decorator: adds the common options to a click command. Read them with settings_of()."""
    return without()(command)


def without(*hidden: str, refused: Mapping[str, str] | None = None, own: Sequence[str] = ()) -> Callable[[F], F]:
    """common_options, of which `hidden` mean nothing to this verb: accepted, so that an alias or a playbook may give
    them to every verb, and not offered. refused: those that a user would give for a reason, with what to write. own:
    those by whose name it has an option of its own; the common ones are before the verb."""
    refused = refused or {}

    def refuse(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if ctx.get_parameter_source(str(param.name)) not in (ParameterSource.DEFAULT, None):
            raise UsageError(f"{ctx.command_path} takes no {'/'.join(param.opts)}", hint=refused[str(param.name)])

    def add(command: F) -> F:
        for name, (flags, attrs) in reversed([each for each in _OPTIONS.items() if each[0] not in own]):
            command = click.option(
                *flags,
                name,
                cls=CommonOption,
                expose_value=False,
                callback=refuse if name in refused else _store,
                hidden=name in hidden or name in refused,
                **attrs,
            )(command)
        return command

    return add
