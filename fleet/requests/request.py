"""Defines the base of requests. A request checks itself, for the command line, Python programs, playbooks and
documents."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, BinaryIO, Literal, Union, get_args, get_origin

from fleet.codec import MOST, UNBOUNDED, Bounds, Misfit, decode, hints, to_json
from fleet.errors import UsageError

LIMITS, HINT = "limits", "hint"  # keys of a field's metadata
HELP, FLAGS, METAVAR, COMPLETES, DAILY, SECTION = "help", "flags", "metavar", "completes", "daily", "section"
MOMENT = 0.001  # seconds; lower limit of a time that must not be 0


class OptionError(UsageError):
    """An option has an invalid value. option: its name in a Python program. problem: why it is invalid."""

    def __init__(self, option: str, problem: str, hint: str | None = None) -> None:
        super().__init__(f"{option} {problem}", hint=hint)
        self.option, self.problem = option, problem


def within(least: float, most: float = MOST) -> dict[str, Any]:
    """Returns the metadata of a field whose number, or each of its numbers, is within these limits."""
    return {LIMITS: Bounds(least=least, most=most)}


def number(default: Any, least: float, most: float = MOST) -> Any:
    """Returns a field of a request for a number, or several, within these limits."""
    return field(default=default, metadata=within(least, most))


def option(
    default: Any,
    help: str,
    *flags: str,
    metavar: str | None = None,
    completes: str | None = None,
    limits: Mapping[str, Any] = {},
    daily: bool = False,
    section: str | None = None,
) -> Any:
    """Returns a field of a request that is an option. help: a sentence or two. flags: how it is typed, if not by its
    name. metavar: the name of its value. completes: the function of cli/line/complete.py for its values. limits: see
    `within`. daily: a verb with many options shows it first. section: its section in the verb's help."""
    about = {HELP: help, FLAGS: flags, METAVAR: metavar, COMPLETES: completes, DAILY: daily, SECTION: section}
    return field(default=default, metadata={**about, **limits})


@dataclass(frozen=True)
class Request:
    """The base of all requests. A whole number is not accepted as a text, nor a text as a list; sequences become
    tuples."""

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, self.fitted(each.name, getattr(self, each.name)))
        self.check()

    @classmethod
    def fitted(cls, name: str, value: Any) -> Any:
        """Returns a value converted for that field. Raises OptionError."""
        own: Any = cls
        kind, more = hints(own)[name], cls.__dataclass_fields__[name].metadata
        bounds = more.get(LIMITS, UNBOUNDED)
        try:
            return decode(kind, value, bounds)
        except Misfit as error:
            shown = f"{value:g}: " if isinstance(value, float) else f"{value!r:.80}: "
            wanted = _wanted(kind, bounds, item=bool(error.where))
            if isinstance(value, Mapping):  # values of variables may be secret
                shown = ""
                if error.where:
                    wanted = f"a mapping of texts to texts ({error.where[1:-1]} is {type(error.value).__name__})"
            raise OptionError(name, f"{shown}must be {wanted}", more.get(HINT)) from None

    def check(self) -> None:
        """Checks the options together. Raises UsageError."""

    def given(self) -> dict[str, Any]:
        """Returns the fields that differ from their defaults, as JSON values."""
        found = {}
        for each in fields(self):
            unset = each.default if each.default_factory is MISSING else each.default_factory()
            if (value := getattr(self, each.name)) != unset:
                found[each.name] = to_json(value)
        return found


@dataclass(frozen=True, kw_only=True)
class Reach(Request):
    """Describes how hosts are reached, for every request. fanout: hosts worked on at once. connect_timeout: seconds to
    reach and authenticate one."""

    fanout: int = option(64, "Hosts worked on at once.", metavar="N", limits=within(1, 4096))
    connect_timeout: float = option(
        10.0, "Seconds to reach and authenticate a host.", metavar="S", limits=within(0.1, 3600)
    )


def _wanted(kind: Any, bounds: Bounds, item: bool) -> str:
    """Returns the name of a type, for messages. item: an item of a list is wrong."""
    origin, args = get_origin(kind), get_args(kind)
    shape = origin or kind
    if origin in (Union, UnionType):
        return " or ".join(_wanted(each, bounds, item) for each in args if each is not NoneType)
    if origin is Literal:
        return " or ".join(map(repr, args))
    if shape in (int, float):
        low = "more than 0" if bounds.least == MOMENT else f"{bounds.least:g} or more"
        span = f" from {bounds.least:g} to {bounds.most:g}" if bounds.most < MOST else f", {low}"
        return ("a whole number" if kind is int else "a number") + span * (bounds.least > -MOST)
    if args and issubclass(shape, Collection) and not issubclass(shape, Mapping):
        if args[0] is str:
            return "a list of texts"
        return f"a list, of which each is {_wanted(args[0], bounds, item)}" if item else "a list of whole numbers"
    return _NAMES.get(shape, "a function")


_NAMES: Mapping[Any, str] = {
    bool: "true or false",
    str: "a text",
    bytes: "bytes",
    BinaryIO: "a file of them",
    os.PathLike: "a path",
    Mapping: "a mapping",
}
