"""fleet's own values as JSON, for another process of fleet, which may be of another version.

Fields that the reader does not know are left out, those that it misses have their defaults. Dataclasses name their
class, for unions of several. Errors keep what users see of them.
"""

from __future__ import annotations

import typing
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

from fleet import errors
from fleet.errors import FleetError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
_ROWS: Mapping[Any, Any] = {tuple: tuple, list: list, frozenset: frozenset, Sequence: tuple}
CLASS = "class"
MISFIT = (TypeError, KeyError, AttributeError, ValueError)
OF_ERROR = ("message", "hint", "where", "host", "kind")


def to_json(value: Any) -> Any:
    """`value` as JSON has it. TypeError: it holds what is not meant to leave this process."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: to_json(getattr(value, each.name)) for each in fields(value) if each.init}
        return {CLASS: type(value).__name__, **parts}
    if isinstance(value, FleetError):
        return {CLASS: type(value).__name__, **{name: getattr(value, name) for name in OF_ERROR}}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_json(item) for item in value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} does not leave this process")


def from_json(kind: TypeForm[T], stored: Any) -> T:
    """What to_json() made of a `kind`. ValueError: it is nothing of that kind."""
    try:
        found: T = _read(kind, stored)
    except MISFIT as error:
        raise ValueError(f"not a {getattr(kind, '__name__', kind)}: {error!r}") from error
    return found


def _read(kind: Any, stored: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _either(args, stored)
    if is_dataclass(kind):
        return _record(kind, stored)
    if isinstance(kind, type) and issubclass(kind, FleetError):
        return _error(stored)
    if origin in _ROWS:
        if not isinstance(stored, list):
            raise TypeError(f"{stored!r:.80} is no list")
        kinds = args if origin is tuple and args[-1] is not Ellipsis else args[:1] * len(stored)
        return _ROWS[origin](_read(each, item) for each, item in zip(kinds, stored, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {_read(args[0], key): _read(args[1], item) for key, item in stored.items()}
    if kind is Path:
        return Path(stored)
    if kind is float:
        return float(stored)
    if kind is bytes:
        return stored.encode("latin-1")
    if kind is Any or origin is Literal or typing.is_typeddict(kind):
        return stored
    if not isinstance(stored, origin or kind):
        raise TypeError(f"{stored!r:.80} is no {kind.__name__}")
    return stored


def _either(kinds: tuple[Any, ...], stored: Any) -> Any:
    """Of a union: the class that is named, else the first that it can be."""
    named = stored.get(CLASS) if isinstance(stored, dict) else None
    for kind in sorted(kinds, key=lambda kind: getattr(kind, "__name__", "") != named):
        with suppress(*MISFIT):
            return _read(kind, stored)
    raise TypeError(f"{stored!r:.80} is none of {kinds}")


@cache
def hints(kind: Hashable) -> dict[str, Any]:
    """The types of a dataclass's fields, read once."""
    return typing.get_type_hints(kind)


def _record(kind: Any, stored: Mapping[str, Any]) -> Any:
    known = {each.name: each for each in fields(kind) if each.init}
    given = {name: _read(hints(kind)[name], stored[name]) for name in known if name in stored}
    for name, each in known.items():
        if name not in given and each.default is MISSING and each.default_factory is MISSING:
            raise TypeError(f"{kind.__name__} without {name}")
    return kind(**given)


def _error(stored: Mapping[str, Any]) -> FleetError:
    kind = getattr(errors, stored[CLASS], FleetError)
    if not (isinstance(kind, type) and issubclass(kind, FleetError)):
        kind = FleetError
    made = FleetError.__new__(kind)
    FleetError.__init__(made, stored["message"], **{name: stored.get(name) for name in OF_ERROR[1:]})
    return made
