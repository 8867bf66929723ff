"""Reads what a node said as the type that it must be. For the head: nodes send, and need none of this.

    decode(Stopped, value)              the value, typed; Misfit where it is nothing of that kind
    decode(Rank | Status, value)  of messages, the one that has the value's "event"

A type is made of TypedDict, list, dict with str keys, tuple (a JSON list of just so many), Literal, Union, Annotated
with predicates, str, int, float, bool, None and Any. bool is no int, an int is a float. Keys that a TypedDict does not
know are kept. No honest program says more than MAX_TEXT characters in one string, or lists more than MAX_ITEMS.
"""

import reprlib
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from typing import is_typeddict as is_record

if TYPE_CHECKING:
    from typing_extensions import TypeForm

MAX_TEXT = 4096
MAX_ITEMS = 100_000
MAX_NUMBER = 1 << 64
T = TypeVar("T")
Reader = Callable[[Any], Any]


class _Missing:
    def __repr__(self) -> str:
        return "missing"


class Misfit(ValueError):
    """What was said is not what belongs there. where: the way to it, ".gpus[0].name"."""

    def __init__(self, value: Any, where: str = "") -> None:
        super().__init__(f"{where.lstrip('.') or 'the message'} is {reprlib.repr(value)}")
        self.value, self.where = value, where

    def inside(self, where: str) -> "Misfit":
        return Misfit(self.value, where + self.where)


def decode(kind: "TypeForm[T]", value: Any) -> T:
    """`value`, out of JSON, as a `kind`; Misfit where it is none."""
    found: T = _reader(kind)(value)  # type: ignore[arg-type]
    return found


@cache
def _reader(kind: Any) -> Reader:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if is_record(kind):
        return _record(kind)
    if origin is Annotated:
        return _limited(_reader(args[0]), args[1:])
    if origin in (Union, UnionType):
        return _either(args)
    if origin is Literal:
        return _that(lambda value: any(type(value) is type(arg) and value == arg for arg in args))
    if origin is list:
        return _items(_reader(args[0]))
    if origin is tuple:
        return _row([_reader(arg) for arg in args])
    if origin is dict:
        return _table(*map(_reader, args))
    return _that(_PLAIN[kind])


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= MAX_TEXT


def _is_whole(value: Any) -> bool:
    return type(value) is int and -MAX_NUMBER < value < MAX_NUMBER


_PLAIN: dict[Any, Callable[[Any], bool]] = {
    str: _is_text,
    int: _is_whole,
    float: lambda value: _is_whole(value) or type(value) is float and -MAX_NUMBER < value < MAX_NUMBER,
    bool: lambda value: type(value) is bool,
    NoneType: lambda value: value is None,
    None: lambda value: value is None,
}


def _that(fits: Callable[[Any], bool]) -> Reader:
    def read(value: Any) -> Any:
        if not fits(value):
            raise Misfit(value)
        return value

    return read


def _limited(part: Reader, limits: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        found = part(value)
        for limit in limits:  # all() of a generator takes twice as long, and lists of files are long
            if not limit(found):
                raise Misfit(value)
        return found

    return read


def _items(part: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list or len(value) > MAX_ITEMS:
            raise Misfit(value)
        found = []
        try:
            for item in value:
                found.append(part(item))
        except Misfit as error:
            raise error.inside(f"[{len(found)}]") from None
        return found

    return read


def _row(parts: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(parts):
            raise Misfit(value)
        return tuple([part(item) for part, item in zip(parts, value, strict=True)])

    return read


def _table(name: Reader, part: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict or len(value) > MAX_ITEMS:
            raise Misfit(value)
        found = {}
        for key, item in value.items():
            try:
                found[name(key)] = part(item)
            except Misfit as error:
                raise error.inside(f"[{reprlib.repr(key)}]") from None
        return found

    return read


def _record(kind: Any) -> Reader:
    parts = {key: _reader(hint) for key, hint in get_type_hints(kind, include_extras=True).items()}
    required = kind.__required_keys__

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise Misfit(value)
        found = dict(value)
        for key, part in parts.items():
            try:
                if key in value:
                    found[key] = part(value[key])
                elif key in required:
                    raise Misfit(_Missing())
            except Misfit as error:
                raise error.inside("." + key) from None
        return found

    return read


def _events(kind: Any) -> tuple[str, ...]:
    """The words that a message's "event" may be; none for what is no message."""
    event = get_type_hints(kind).get("event") if is_record(kind) else None
    return get_args(event) if get_origin(event) is Literal else ()


def _either(kinds: tuple[Any, ...]) -> Reader:
    messages = {event: _reader(kind) for kind in kinds for event in _events(kind)}
    others = [_reader(kind) for kind in kinds if not _events(kind)]

    def read(value: Any) -> Any:
        event = value.get("event", _Missing()) if messages and type(value) is dict else None
        if type(event) is str and event in messages:
            return messages[event](value)
        errors = [] if others or event is None else [Misfit(event, ".event")]
        for part in others:
            try:
                return part(value)
            except Misfit as error:
                errors.append(error)
        raise max(errors, key=lambda error: len(error.where), default=Misfit(value))

    return read
