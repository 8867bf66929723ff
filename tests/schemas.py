"""What fits a type of fleet/protocol, and what nearly does, as hypothesis draws it from the type itself."""

from __future__ import annotations

import copy
import functools
import json
import string
from collections.abc import Callable, Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from hypothesis import strategies as st

from fleet.protocol.messages.facts import OwnAddress
from fleet.protocol.messages.run import RunId
from fleet.protocol.messages.values import Count, Matching, Path
from tests.liar import JUNK, TEXTS, places

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.one_of(
        st.sampled_from([text for text in TEXTS if len(text) <= 4096]), st.text(string.printable, max_size=8)
    ),
    int: st.one_of(st.integers(-2, 5), st.integers(-(1 << 40), 1 << 40), st.sampled_from([1 << 62, -(1 << 63)])),
    float: st.one_of(st.integers(-2, 5), st.floats(-1e18, 1e18)),
    bool: st.booleans(),
    NoneType: st.none(),
    Any: JUNK,
}

NAMES = st.text(string.ascii_letters + "/. ~\udcff\u202e\x1b", min_size=1, max_size=8)
# what a filter would seldom let through
KNOWN: dict[Any, st.SearchStrategy[Any]] = {
    Path: NAMES,
    Count: st.integers(0, (1 << 62) - 1),
    OwnAddress: st.sampled_from(
        ["10.0.0.5/24", "10.0.0.6", "fe80::1/64", "fd00::5/64", "0.0.0.0/0", "::/0", "127.0.0.1/8"]
    ),
    RunId: st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,47}-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}", fullmatch=True),
}


@functools.cache
def fitting(kind: Any) -> st.SearchStrategy[Any]:
    """JSON values that `decode` takes as a `kind`."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in KNOWN:
        return KNOWN[kind]
    if is_typeddict(kind):
        parts = {key: fitting(hint) for key, hint in get_type_hints(kind, include_extras=True).items()}
        needed = {key: part for key, part in parts.items() if key in kind.__required_keys__}
        return st.fixed_dictionaries(needed, optional={key: parts[key] for key in parts.keys() - needed.keys()})
    if origin is Annotated:
        patterns = [limit.pattern for limit in args[1:] if isinstance(limit, Matching)]
        base = st.from_regex(patterns[0], fullmatch=True) if patterns else fitting(args[0])
        return base.filter(lambda value: all(limit(value) for limit in args[1:]))
    if origin in (Union, UnionType):
        return st.one_of(*map(fitting, args))
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (list, Sequence):
        return st.lists(fitting(args[0]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(fitting, args)).map(list)
    if origin is dict:
        return st.dictionaries(*map(fitting, args), max_size=3)
    return PLAIN[kind]


@st.composite
def nearly(draw: Callable[[Any], Any], kind: Any) -> Any:
    """What fits, with something in it that is of another kind, gone, or more than there is to be."""
    value = copy.deepcopy(draw(fitting(kind)))
    where = list(places(value))
    if not where:
        return draw(JUNK)
    inside, key = draw(st.sampled_from(where))
    change = draw(st.sampled_from(["junk", "junk", "gone", "more"]))
    if change == "gone":
        del inside[key]
    elif change == "more" and isinstance(inside, dict):
        inside[draw(st.sampled_from(TEXTS))] = draw(JUNK)
    else:
        inside[key] = draw(JUNK)
    return value


def as_json(value: Any) -> Any:
    """What is left of it behind the wire."""
    return json.loads(json.dumps(value))


def kinds(module: Any) -> Iterator[Any]:
    """The messages, and what they are made of, that a module of fleet/protocol/messages defines."""
    return (kind for kind in vars(module).values() if is_typeddict(kind))
