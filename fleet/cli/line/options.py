"""Defines the common options. These options are valid before and after the verb; values after the verb win."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

import click

from fleet.cli.line.command import CommonOption, F, FleetOption, OneOf, completed, was_typed
from fleet.cli.line.line import Settings, settings_of
from fleet.codec import hints
from fleet.errors import UsageError
from fleet.registry import Registry
from fleet.requests.request import COMPLETES, DAILY, FLAGS, HELP, LIMITS, METAVAR, SECTION, OptionError, Reach, Request
from fleet.requests.runs import OfRun
from fleet.sources import INVENTORY, SOURCES
from fleet.transport import TRANSPORTS


def request_options(request: type[Request], *names: str, **more: Mapping[str, Any]) -> Callable[[F], F]:
    """Decorator: adds the options for these fields of a request, in this order. more: field -> click settings that only
    the command line needs."""

    def add(command: F) -> F:
        for name in reversed(names):
            flags, attrs = _declared(request, name, more.get(name, {}))
            command = click.option(*flags, name, cls=FleetOption, **attrs)(command)
        return command

    return add


def _declared(request: type[Any], name: str, more: Mapping[str, Any] = {}) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns (the option's flags, its other click settings)."""
    about = request.__dataclass_fields__[name].metadata
    attrs = {
        **_typed(request, name),
        "help": about[HELP],
        "metavar": about[METAVAR],
        "daily": about.get(DAILY, False),
        "section": about.get(SECTION),
        **more,
    }
    if completes := about.get(COMPLETES):
        attrs["shell_complete"] = completed(completes)
    flag = f"--{name.replace('_', '-')}"
    return about.get(FLAGS) or (f"{flag}/--no-{flag[2:]}" if attrs.get("default") is True else flag,), attrs


def _typed(request: type[Any], name: str) -> dict[str, Any]:
    """Returns the option's type and default as click settings."""
    field, kind = request.__dataclass_fields__[name], hints(cast(Any, request))[name]
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    bases = [get_origin(each) or each for each in kinds]
    default: Any = field.default
    given: dict[str, Any] = {} if default in (MISSING, None, ()) else {"default": default}
    if bool in bases:
        return {"is_flag": True, **given}
    if LIMITS in field.metadata:
        number = Limited(request, name, int if int in bases else float)
        return {"type": number, "show_default": bool(default), **given}
    if bases[0] is Literal:
        return {"type": OneOf(get_args(kinds[0]))}
    if os.PathLike in bases and default is not None:
        return {"type": click.Path(path_type=Path), "default": Path(default)}
    return {"multiple": any(base in (Sequence, Collection, Mapping) for base in bases), **given}


class Limited(click.ParamType):  # type: ignore[type-arg]
    """A number in a request, checked against the limits of its field."""

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
    """Returns the error with the option's name as it is typed on a command line."""
    return UsageError(f"--{error.option.replace('_', '-')} {error.problem}", hint=error.hint)


class Named(OneOf):
    """A name in a registry. Names of other packages are looked up only for help, for completion, and for a name that is
    not fleet's own. more: valid names that the registry does not have."""

    def __init__(self, registry: Registry[Any], *more: str) -> None:
        self.registry, self.more, self.case_sensitive = registry, more, True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.more, *self.registry.names)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        own = value in self.registry.own or value in self.more
        return str(value) if own else super().convert(value, param, ctx)


def runs_dir_option(**more: Any) -> Callable[[F], F]:
    """Decorator: adds --runs-dir, the folder of runs on this machine. more: click settings of this verb's option."""
    kind = click.Path(path_type=Path, file_okay=False)
    return request_options(OfRun, "runs_dir", runs_dir={"type": kind, "show_default": True, **more})


def pairs(option: str, tokens: Iterable[str]) -> dict[str, str]:
    """Returns NAME=VALUE arguments as a dict. Raises UsageError for any other argument."""
    found = dict[str, str]()
    for pair in tokens:
        name, equals, found[name] = pair.partition("=")
        if not (name.isidentifier() and equals):
            raise UsageError(f"{option} {pair}: must be NAME=VALUE")
    return found


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    assert param.name
    if was_typed(ctx, param.name):
        # if it is given twice, the hosts of both count, as with pdsh and clush
        setattr(settings_of(ctx), param.name, ",".join(value) if param.multiple else value)


# common option -> click settings that only the command line needs
_MORE: dict[str, dict[str, Any]] = {
    "on": {"type": Named(SOURCES, INVENTORY), "show_default": True},
    "hosts": {"multiple": True},
    "exclude": {"multiple": True},
    "transport": {"type": Named(TRANSPORTS), "show_default": True},
    "verbose": {"count": True},
}
_OPTIONS = {
    name: _declared(Reach if name in Reach.__dataclass_fields__ else Settings, name, _MORE.get(name, {}))
    for name in Settings.__dataclass_fields__
}


# common options that have no meaning for a verb that uses no host
OF_HOSTS = ("inventory", "hosts", "exclude", "transport", "fanout", "connect_timeout")


def without(*hidden: str, refused: Mapping[str, str] | None = None, own: Sequence[str] = ()) -> Callable[[F], F]:
    """Decorator: adds the common options. hidden: options that are accepted but not shown; an alias or a playbook may
    give them to every verb. refused: option -> hint; such an option is an error, because a user would expect an effect.
    own: names for which the verb has its own options; the common options of these names are valid only before the
    verb."""
    refused = refused or {}

    def refuse(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if was_typed(ctx, param.name):
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


# Decorator: adds the common options to a click command. settings_of() returns their values.
common_options = without()
