"""Has the functions loads and dumps of Python's json, without the time of importing json. json's decoder imports re,
which takes half of the time of a short program on a node. This module uses the C code of json. If this Python lacks
that C code, it uses json itself."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable

    _scan: "Callable[[str, int], tuple[Any, int]]"
    _encode: "Callable[[object, int], Iterable[str]]"


class _Defaults:
    """Holds the settings that json's own decoder passes to the scanner. array_hook exists from Python 3.15 on."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float = float
    parse_int = int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__


def _unknown(value: object) -> None:
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)


try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _scan = make_scanner(_Defaults)  # type: ignore[arg-type]
    _encode = make_encoder(None, _unknown, encode_basestring_ascii, None, ": ", ", ", False, False, True)
except (ImportError, TypeError, AttributeError):
    from json import JSONDecoder, JSONEncoder

    _scan = JSONDecoder().raw_decode

    def _encode(value: object, _level: int) -> "Iterable[str]":
        return JSONEncoder().iterencode(value)


def loads(text: str) -> "Any":
    """Returns the value of a JSON text. Raises ValueError for a text that is no JSON."""
    text = text.strip(" \t\n\r")
    try:
        value, end = _scan(text, 0)
    except (StopIteration, SystemError, ValueError):  # SystemError: the C code needs an exception of the json module
        value, end = None, -1
    if end == len(text):
        return value
    import json  # imported only for an invalid text: the error of json's own loads has the details

    return json.loads(text)


def loads_object(data: bytes) -> "dict[str, Any]":
    """Returns the JSON object in `data`, or {} if `data` is no JSON object."""
    try:
        found = loads(data.decode("utf-8")) if data else {}  # often empty: loads() would import json for that
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def dumps(value: object) -> str:
    return "".join(_encode(value, 0))
