"""Whether what a node said has the shape that it must have."""

from __future__ import annotations

import re
from types import NoneType
from typing import Any

# no honest program of ours says more in one string, or lists more
MAX_TEXT = 4096
MAX_ITEMS = 100_000
MAX_NUMBER = 1 << 64
# what can be a path on a node: bytes that are no UTF-8 come as \udc80 to \udcff
PATH = re.compile("[^\0\ud800-\udc7f\udd00-\udfff]+")
ABSOLUTE = re.compile("/[^\0\ud800-\udc7f\udd00-\udfff]*")
# what a program says in the end that could not do its work
FAILED = {"event": re.compile("failed"), "message": str, "hint": (str, None)}


class Known(dict[str, Any]):
    """As a shape: an object in which those of these keys that are there have their shapes."""


def fits(value: Any, shape: Any) -> bool:
    """Whether `value`, out of JSON, has this shape: a type (bool is no int); a compiled pattern for a str that it
    matches in full; [shape] for a list of such; {key: shape} for an object with at least these keys; {str: shape}
    for one with any keys; (shape, shape) for either; None. A str is at most MAX_TEXT characters long, whatever its
    shape, and a number below MAX_NUMBER."""
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and len(value) <= MAX_ITEMS and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, dict) and str in shape:
        return isinstance(value, dict) and fits(list(value), [str]) and fits(list(value.values()), [shape[str]])
    if isinstance(shape, Known):
        return isinstance(value, dict) and all(fits(value[key], shape[key]) for key in shape.keys() & value.keys())
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(key in value and fits(value[key], part) for key, part in shape.items())
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return False
    if isinstance(value, int | float) and not -MAX_NUMBER < value < MAX_NUMBER:
        return False
    if isinstance(shape, re.Pattern):
        return isinstance(value, str) and shape.fullmatch(value) is not None
    return type(value) is (NoneType if shape is None else shape)
