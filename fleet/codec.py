"""fleet's own values as JSON, for another process of fleet.

Fields that a class does not have are left out, those that it misses have their defaults. Dataclasses name their
class, for unions of several. Errors keep what users see of them.
"""

from __future__ import annotations

import typing
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, field, fields, is_dataclass
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
# of a field's metadata: what it is called in documents, where that is left out for None; it does not leave this process
KEY, STAYS = "key", "stays"
SPREAD = "**"  # the key of a mapping whose items stand among the fields
MISFIT = (TypeError, KeyError, AttributeError, ValueError)
OF_ERROR = ("message", "hint", "where", "host", "kind")


def where_known(key: str | None = None) -> Any:
    """A field of an answer that is left out of its JSON where it is None. key: what it is called there."""
    return field(default=None, metadata={KEY: key})


def spread() -> Any:
    """A field of an answer whose items stand among the fields."""
    return field(default_factory=dict, metadata={KEY: SPREAD})


def plain(value: Any) -> Any:
    """An answer as documents have it: its fields, by their names, without classes."""
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        for each in fields(value):
            part = getattr(value, each.name)
            if each.metadata.get(KEY) == SPREAD:
                found |= plain(part)
            elif part is not None or KEY not in each.metadata:
                found[each.metadata.get(KEY) or each.name] = plain(part)
        return found
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_json(value: Any) -> Any:
    """`value` as JSON has it. TypeError: it holds what is not meant to leave this process."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: to_json(getattr(value, each.name)) for each in fields(value) if STAYS not in each.metadata}
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
    known = {each.name: each for each in fields(kind) if STAYS not in each.metadata}
    keys = {name: each.metadata.get(KEY) or name for name, each in known.items()}
    given = {name: _read(hints(kind)[name], stored[key]) for name, key in keys.items() if key in stored}
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
