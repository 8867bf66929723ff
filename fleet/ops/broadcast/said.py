"""What relays say to the head: the shape of every message, checked before anything is done about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleet.ops.shape import ABSOLUTE, fits

LACKS: dict[str, Any] = {"wants": [[int]], "files": [[int]], "unsure": dict}
SHAPES: dict[str, dict[str, Any]] = {
    "hello": {},
    "shared": {"with": str},
    "lacks": {},
    "need": {**LACKS, "bytes": int, "address": (str, None), "port": (int, None), "stages": [ABSOLUTE]},
    "at": {"position": int, "received": int, "placed": int, "sent": int},
    "link": {"epoch": int, "connected": bool, "nonsense": bool, "why": str},
    "served": {"epoch": int},
    "corrupt": {"file": int, "epoch": (int, None)},
    "done": {"files": int, "bytes": int, "problems": [[str]]},
    "failed": {"message": str, "hint": (str, None)},
}


def checked(message: Mapping[str, Any]) -> str:
    """The event of a member's message; ValueError where it is not of the event's shape."""
    event = message["event"]
    if not fits(message, SHAPES[event]):
        raise ValueError(f"{event} is told in another way")
    return str(event)


def count_of(value: Any) -> int:
    """A number of bytes that a node told; ValueError for what is none."""
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("no number of bytes")
    return value


def ranges(pairs: Sequence[Sequence[int]], end: int) -> list[tuple[int, int]]:
    """[(from, to)] as a node gave them: in order, apart, none empty, between 0 and end."""
    found = [(a, b) for a, b in pairs]
    flat = [0, *(n for pair in found for n in pair), end]
    if flat != sorted(flat) or any(a == b for a, b in found):
        raise ValueError("ranges that are none")
    return found
