"""A request checks itself, for the command line, for Python programs, playbooks and documents alike."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from fleet.codec import hints
from fleet.errors import UsageError

T = TypeVar("T")
LIMITS, HINT = "limits", "hint"  # of a field's metadata
MOMENT = 0.001  # seconds: the least of a time that may not be 0
Limits = tuple[float, float] | None


class OptionError(UsageError):
    """An option has a value that it cannot have. option: its name, as a Python program has it. problem: why not."""

    def __init__(self, option: str, problem: str, hint: str | None = None) -> None:
        super().__init__(f"{option} {problem}", hint=hint)
        self.option, self.problem = option, problem


class Unfit(ValueError):
    """Not what belongs there: what it must be."""


def within(least: float, most: float = math.inf) -> dict[str, Any]:
    """The metadata of a field: its number, or each of its numbers, is within these."""
    return {LIMITS: (least, most)}


def number(default: Any, least: float, most: float = math.inf) -> Any:
    """A field of a request: a number, or several, within these."""
    return field(default=default, metadata=within(least, most))


@dataclass(frozen=True)
class Request:
    """Base of all. Whole numbers are no texts, and a text is no list; sequences become tuples."""

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, self.fitted(each.name, getattr(self, each.name)))
        self.check()

    @classmethod
    def fitted(cls, name: str, value: Any) -> Any:
        """A value as that field has it. OptionError."""
        own: Any = cls
        more = cls.__dataclass_fields__[name].metadata
        try:
            return _fitted(hints(own)[name], value, more.get(LIMITS))
        except Unfit as error:
            shown = f"{value:g}" if isinstance(value, float) else f"{value!r:.80}"
            shown = "" if isinstance(value, Mapping) else shown  # values of variables may be secret
            raise OptionError(name, f"{shown}: must be {error}".lstrip(": "), more.get(HINT)) from None

    def check(self) -> None:
        """What options mean together. UsageError."""

    def given(self) -> dict[str, Any]:
        """Those that have not their defaults, as JSON has them."""
        found = {}
        for each in fields(self):
            unset = each.default if each.default_factory is MISSING else each.default_factory()
            if (value := getattr(self, each.name)) != unset:
                found[each.name] = _plain(value)
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _fitted(kind: Any, value: Any, limits: Limits) -> Any:
    """The value as its field has it. Unfit."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        wanted = []
        for each in args:
            try:
                return _fitted(each, value, limits)
            except Unfit as error:
                wanted += [str(error)] * (each is not NoneType)
        raise Unfit(" or ".join(wanted))
    if origin is Literal:
        return _that(value in args, " or ".join(map(repr, args)), value)
    if origin is not None and issubclass(origin, Mapping):
        return _table(args, value)
    if origin is not None and issubclass(origin, os.PathLike):
        return _that(isinstance(value, os.PathLike), "a path", value)
    if origin is not None and issubclass(origin, Collection):
        fits = isinstance(value, origin) and not isinstance(value, (str, bytes, Mapping))
        _that(fits, "a list of texts" if args[0] is str else "a list of whole numbers", value)
        return tuple(_item(args[0], item, limits) for item in value)
    return _PLAIN[kind](value, limits) if kind in _PLAIN else value


def _item(kind: type, item: Any, limits: Limits) -> Any:
    try:
        return _fitted(kind, item, limits)
    except Unfit as error:
        raise Unfit("a list of texts" if kind is str else f"a list, of which each is {error}") from None


def _table(kinds: tuple[Any, ...], value: Any) -> Mapping[str, Any]:
    found = dict(_that(isinstance(value, Mapping), "a mapping", value))
    for name, item in found.items():
        if not isinstance(name, str) or (kinds[1] is str and not isinstance(item, str)):
            raise Unfit(f"a mapping of texts to texts ({name!r} is {type(item).__name__})")
    return found


def _that(fits: bool, wanted: str, value: T) -> T:
    if not fits:
        raise Unfit(wanted)
    return value


def _number(what: str, kinds: tuple[type, ...]) -> Callable[[Any, Limits], Any]:
    def read(value: Any, limits: Limits) -> Any:
        least, most = limits or (-math.inf, math.inf)
        low = "more than 0" if least == MOMENT else f"{least:g} or more"
        span = f" from {least:g} to {most:g}" if most < math.inf else f", {low}" * (least > -math.inf)
        fits = isinstance(value, kinds) and not isinstance(value, bool)
        return _that(fits and math.isfinite(value) and least <= value <= most, what + span, value)

    return read


_PLAIN: Mapping[Any, Callable[[Any, Limits], Any]] = {
    bool: lambda value, _: _that(isinstance(value, bool), "true or false", value),
    str: lambda value, _: _that(isinstance(value, str), "a text", value),
    NoneType: lambda value, _: _that(value is None, "none", value),
    int: _number("a whole number", (int,)),
    float: _number("a number", (int, float)),
}
