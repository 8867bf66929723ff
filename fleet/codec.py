"""Turns values into JSON, and back. One reader serves for what nodes send, for fleet's own processes, and for requests.

    decode(Stopped, value)        the value, typed; raises Misfit if it is no such value
    decode(Rank | Status, value)  of messages, the one that has the value's "event"; of dataclasses, the one it names

A type is made of TypedDict, dataclasses, lists, sets, tuples, mappings, Literal, Union, Annotated with predicates, str,
int, float, bool, bytes, Path, None and Any. A bool is no int; an int is a float. A TypedDict keeps keys that it does
not know. A dataclass drops them, and fills missing fields with their defaults. Bounds limit how much a value may hold:
no correct program sends more than WIRE allows. An error keeps only what users see of it.
"""

from __future__ import annotations

import math
import reprlib
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from fleet import errors
from fleet.errors import FleetError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
Reader = Callable[[Any], Any]
CLASS, EVENT = "class", "event"
# KEY: a field's name in documents, None: its own; left out there where it is None. STAYS: not to leave the process
KEY, STAYS = "key", "stays"
SPREAD = "**"  # the KEY of a mapping whose items documents have among the fields
OF_ERROR = ("message", "hint", "where", "host", "kind")
MOST = (1 << 64) - 1


class Bounds(NamedTuple):
    """Limits values: the characters of a text, the items of a list or mapping, the range of a number."""

    text: float = math.inf
    items: float = math.inf
    least: float = -MOST
    most: float = MOST


WIRE, OWN = Bounds(text=4096, items=100_000), Bounds()


class _Missing:
    def __repr__(self) -> str:
        return "missing"


class Misfit(ValueError):
    """Reports a value that is not of its type. where: the path to it, like ".gpus[0].name"."""

    def __init__(self, value: Any, where: str = "") -> None:
        super().__init__(f"{where.lstrip('.') or 'the message'} is {reprlib.repr(value)}")
        self.value, self.where = value, where

    def inside(self, where: str) -> Misfit:
        return Misfit(self.value, where + self.where)


def where_known(key: str | None = None) -> Any:
    """Returns a field of an answer that its JSON leaves out where it is None. key: its name there, None: its own."""
    return field(default=None, metadata={KEY: key})


def spread() -> Any:
    """Returns a field of an answer, a mapping whose items its JSON has among the answer's fields."""
    return field(default_factory=dict, metadata={KEY: SPREAD})


def plain(value: Any) -> Any:
    """Returns an answer as documents have it: its fields by their names, without the names of classes."""
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
    """Returns `value` as JSON for from_json(). Raises TypeError where it holds what must not leave this process."""
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
    """Returns the `kind` of which to_json() made `stored`. Raises Misfit where that is none."""
    return decode(kind, stored, OWN)


def decode(kind: TypeForm[T], value: Any, bounds: Bounds = WIRE) -> T:
    """Returns `value`, parsed from JSON, as a `kind`. Raises Misfit where it is none."""
    found: T = _reader(kind, bounds)(value)  # type: ignore[arg-type]
    return found


@cache
def hints(kind: Any) -> dict[str, Any]:
    """Returns the types of a class's fields, read once."""
    return typing.get_type_hints(kind, include_extras=True)


@cache
def _reader(kind: Any, bounds: Bounds) -> Reader:
    origin, args = get_origin(kind), get_args(kind)
    shape = NoneType if kind is None else origin or kind
    if kind is Any:
        return lambda value: value
    if origin is Annotated:
        return _limited(_reader(args[0], bounds), args[1:])
    if origin in (Union, UnionType):
        return _either(args, bounds)
    if origin is Literal:
        return _that(lambda value: any(type(value) is type(arg) and value == arg for arg in args))
    if typing.is_typeddict(kind) or is_dataclass(kind):
        return _record(kind, bounds)
    if issubclass(shape, FleetError):
        return _error
    if origin is tuple and args[-1] is not Ellipsis:
        return _row([_reader(arg, bounds) for arg in args])
    if args and issubclass(shape, Mapping):
        return _table(_reader(args[0], bounds), _reader(args[1], bounds), bounds)
    if args and issubclass(shape, Collection):
        return _items(shape, _reader(args[0], bounds), bounds)
    if shape is str:
        return _that(lambda value: isinstance(value, str) and len(value) <= bounds.text)
    if shape in (int, float):
        return _number((int,) if shape is int else (int, float), bounds)
    if shape in _OUT_OF_TEXT:
        return lambda value: value if isinstance(value, shape) else _OUT_OF_TEXT[shape](_text(value))
    if shape is BinaryIO:
        return _that(lambda value: hasattr(value, "read"))
    return _that(lambda value: isinstance(value, shape))


_OUT_OF_TEXT: Mapping[Any, Callable[[str], Any]] = {Path: Path, bytes: lambda text: text.encode("latin-1")}


def _that(fits: Callable[[Any], bool]) -> Reader:
    def read(value: Any) -> Any:
        if not fits(value):
            raise Misfit(value)
        return value

    return read


_text = _that(lambda value: isinstance(value, str))


def _number(kinds: Any, bounds: Bounds) -> Reader:
    def fits(value: Any) -> bool:
        return isinstance(value, kinds) and not isinstance(value, bool) and bounds.least <= value <= bounds.most

    return _that(fits)


def _limited(part: Reader, limits: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        found = part(value)
        for limit in limits:  # all() of a generator takes twice as long, and lists of files are long
            if not limit(found):
                raise Misfit(value)
        return found

    return read


def _items(shape: type, part: Reader, bounds: Bounds) -> Reader:
    make = shape if shape in (list, frozenset) else tuple

    def read(value: Any) -> Any:
        fits = isinstance(value, (list, shape)) and not isinstance(value, (str, bytes, Mapping))
        if not fits or len(value) > bounds.items:
            raise Misfit(value)
        found = []
        try:
            for item in value:
                found.append(part(item))
        except Misfit as error:
            raise error.inside(f"[{len(found)}]") from None
        return make(found)

    return read


def _row(parts: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(parts):
            raise Misfit(value)
        found = []
        try:
            for part, item in zip(parts, value, strict=True):
                found.append(part(item))
        except Misfit as error:
            raise error.inside(f"[{len(found)}]") from None
        return tuple(found)

    return read


def _table(name: Reader, part: Reader, bounds: Bounds) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping) or len(value) > bounds.items:
            raise Misfit(value)
        found = {}
        for key, item in value.items():
            try:
                found[name(key)] = part(item)
            except Misfit as error:
                raise error.inside(f"[{reprlib.repr(key)}]") from None
        return found

    return read


def _record(kind: Any, bounds: Bounds) -> Reader:
    types = hints(kind)
    if is_dataclass(kind):
        known = {each.name: each for each in fields(kind) if STAYS not in each.metadata}
        keys = {name: each.metadata.get(KEY) or name for name, each in known.items()}
        required = {name for name, each in known.items() if each.default is each.default_factory is MISSING}
    else:
        keys, required = {name: name for name in types}, kind.__required_keys__
    parts = [(name, key, _reader(types[name], bounds)) for name, key in keys.items()]

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Misfit(value)
        found = {} if is_dataclass(kind) else dict(value)
        for name, key, part in parts:
            try:
                if key in value:
                    found[name] = part(value[key])
                elif name in required:
                    raise Misfit(_Missing())
            except Misfit as error:
                raise error.inside("." + key) from None
        return kind(**found)

    return read


def _names(kind: Any) -> tuple[Any, ...]:
    """Returns the names by which JSON shows a value's type: a message's events, a dataclass's own name."""
    if isinstance(kind, type) and is_dataclass(kind):
        return (kind.__name__,)
    event = hints(kind).get(EVENT) if typing.is_typeddict(kind) else None
    return get_args(event) if get_origin(event) is Literal else ()


def _either(kinds: tuple[Any, ...], bounds: Bounds) -> Reader:
    named = {name: _reader(kind, bounds) for kind in kinds for name in _names(kind)}
    others = [_reader(kind, bounds) for kind in kinds if is_dataclass(kind) or not _names(kind)]
    key = CLASS if any(map(is_dataclass, kinds)) else EVENT

    def read(value: Any) -> Any:
        name = value.get(key, _Missing()) if named and isinstance(value, Mapping) else None
        if isinstance(name, str) and name in named:
            return named[name](value)
        errors = [] if others or name is None else [Misfit(name, "." + key)]
        for part in others:
            try:
                return part(value)
            except Misfit as error:
                errors.append(error)
        raise max(errors, key=lambda error: len(error.where), default=Misfit(value))

    return read


def _error(stored: Any) -> FleetError:
    if not isinstance(stored, Mapping) or not {CLASS, "message"} <= stored.keys():
        raise Misfit(stored)
    kind = getattr(errors, str(stored[CLASS]), FleetError)
    if not (isinstance(kind, type) and issubclass(kind, FleetError)):
        kind = FleetError
    made: FleetError = FleetError.__new__(kind)
    FleetError.__init__(made, stored["message"], **{name: stored.get(name) for name in OF_ERROR[1:]})
    return made
