"""Converts values to JSON and back, for messages of nodes, for fleet's own processes, and for requests.

    decode(Stopped, value)        returns the value, typed; raises Misfit if it is no Stopped
    decode(Rank | Status, value)  selects the message with the value's "event", or the dataclass with its "class"

A type is made of TypedDict, dataclasses, lists, sets, tuples, mappings, Literal, Union, Annotated with predicates, str,
int, float, bool, bytes, Path, None and Any. A bool is no int; an int is a float. A TypedDict keeps unknown keys. A
dataclass drops them, and fills missing fields with their defaults. Bounds limit the size of a value: no correct program
sends more than WIRE allows. Of an error, only the parts that users see are kept.
"""

from __future__ import annotations

import math
import os
import reprlib
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from functools import cache
from itertools import repeat
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
# keys of a field's metadata. KEY: documents omit the field if its value is None; metadata[KEY] is its name there, or
# None for the same name. NOT_SERIALIZED: the field does not leave this process
KEY, NOT_SERIALIZED = "key", "stays"
SPREAD = "**"  # metadata[KEY] of a mapping: each of its items becomes a field of the document
OF_ERROR = ("message", "hint", "where", "host", "kind")
MOST = (1 << 64) - 1


class Bounds(NamedTuple):
    """Limits values: the length of a text, the items of a list or mapping, the range of a number."""

    text: float = math.inf
    items: float = math.inf
    least: float = -MOST
    most: float = MOST


WIRE, UNBOUNDED = Bounds(text=4096, items=100_000), Bounds()


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
    """Returns a field that JSON omits if it is None. key: its name in JSON, None: the same name."""
    return field(default=None, metadata={KEY: key})


def spread() -> Any:
    """Returns a field for a mapping whose items become fields in JSON."""
    return field(default_factory=dict, metadata={KEY: SPREAD})


def plain(value: Any) -> Any:
    """Returns a value as documents have it: dataclasses as mappings, without the names of classes."""
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
    """Returns `value` as JSON for from_json(). Raises TypeError for a value that must not leave this process."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value) if NOT_SERIALIZED not in each.metadata]
        return {CLASS: type(value).__name__, **{name: to_json(getattr(value, name)) for name in names}}
    if isinstance(value, FleetError):
        return {CLASS: type(value).__name__, **{name: getattr(value, name) for name in OF_ERROR}}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        items = [to_json(item) for item in value]
        return sorted(items) if isinstance(value, (set, frozenset)) else items
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} does not leave this process")


def from_json(kind: TypeForm[T], stored: Any) -> T:
    """Returns the value that to_json() converted to `stored`. Raises Misfit if the value is no `kind`."""
    return decode(kind, stored, UNBOUNDED)


def decode(kind: TypeForm[T], value: Any, bounds: Bounds = WIRE) -> T:
    """Returns `value`, parsed from JSON, as a `kind`. Raises Misfit if it is none."""
    return typing.cast(T, _reader(kind, bounds)(value))  # type: ignore[arg-type]


@cache
def hints(kind: Any) -> dict[str, Any]:
    """Returns the types of a class's fields."""
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
        return _union(args, bounds)
    if origin is Literal:
        return _check(lambda value: any(type(value) is type(arg) and value == arg for arg in args))
    if typing.is_typeddict(kind) or is_dataclass(kind):
        return _record(kind, bounds)
    if issubclass(shape, FleetError):
        return _error
    if origin is tuple and args[-1] is not Ellipsis:
        return _tuple([_reader(arg, bounds) for arg in args])
    if args and issubclass(shape, Mapping):
        return _mapping(_reader(args[0], bounds), _reader(args[1], bounds), bounds)
    if args and issubclass(shape, Collection):
        return _collection(shape, _reader(args[0], bounds), bounds)
    if shape is str:
        return _check(lambda value: isinstance(value, str) and len(value) <= bounds.text)
    if shape in (int, float):
        kinds, least, most = (int,) if shape is int else (int, float), bounds.least, bounds.most
        return _check(lambda value: isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most)
    if shape in _OUT_OF_TEXT:
        text = _reader(str, UNBOUNDED)
        return lambda value: value if isinstance(value, shape) else _OUT_OF_TEXT[shape](text(value))
    if shape is BinaryIO:
        return _check(lambda value: hasattr(value, "read"))
    return _check(lambda value: isinstance(value, shape))


_OUT_OF_TEXT: Mapping[Any, Callable[[str], Any]] = {Path: Path, bytes: lambda text: text.encode("latin-1")}


def _check(fits: Callable[[Any], bool]) -> Reader:
    def read(value: Any) -> Any:
        if not fits(value):
            raise Misfit(value)
        return value

    return read


def _limited(part: Reader, limits: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        found = part(value)
        for limit in limits:  # all() of a generator takes twice as long, which counts for lists of files
            if not limit(found):
                raise Misfit(value)
        return found

    return read


def _collection(shape: type, part: Reader, bounds: Bounds) -> Reader:
    make = shape if shape in (list, frozenset) else tuple

    def read(value: Any) -> Any:
        fits = isinstance(value, (list, shape)) and not isinstance(value, (str, bytes, Mapping))
        if not fits or len(value) > bounds.items:
            raise Misfit(value)
        return make(_items(value, repeat(part)))

    return read


def _items(value: Iterable[Any], parts: Iterable[Reader]) -> list[Any]:
    found = list[Any]()
    try:
        for item, part in zip(value, parts, strict=False):
            found.append(part(item))
    except Misfit as error:
        raise error.inside(f"[{len(found)}]") from None
    return found


def _tuple(parts: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(parts):
            raise Misfit(value)
        return tuple(_items(value, parts))

    return read


def _mapping(name: Reader, part: Reader, bounds: Bounds) -> Reader:
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
        known = {each.name: each for each in fields(kind) if NOT_SERIALIZED not in each.metadata}
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
    """Returns the names that identify a type in JSON: the events of a message, the name of a dataclass."""
    if isinstance(kind, type) and is_dataclass(kind):
        return (kind.__name__,)
    event = hints(kind).get(EVENT) if typing.is_typeddict(kind) else None
    return get_args(event) if get_origin(event) is Literal else ()


def _union(kinds: tuple[Any, ...], bounds: Bounds) -> Reader:
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
    kind = getattr(errors, str(stored[CLASS]), None)
    kind = kind if isinstance(kind, type) and issubclass(kind, FleetError) else FleetError
    made: FleetError = FleetError.__new__(kind)
    FleetError.__init__(made, stored["message"], **{name: stored.get(name) for name in OF_ERROR[1:]})
    return made
