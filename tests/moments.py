"""What another process does at a moment of a test's choice: just before this one opens a file, or makes a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass
class _Moment:
    event: str
    path: str
    act: Callable[[], object]
    left: int


_waiting: list[_Moment] = []


@contextmanager
def just_before(event: str, path: Path, act: Callable[[], object], nth: int = 1) -> Iterator[None]:
    """Has `act` done once, before the nth such event of that path: "open", "os.mkdir", "os.scandir"."""
    _listen()
    moment = _Moment(event, _place(path), act, nth)
    _waiting.append(moment)
    try:
        yield
    except BaseException:
        if moment in _waiting:
            _waiting.remove(moment)
        raise
    assert moment not in _waiting, f"there was no {event} of {path}"


def _place(path: str | bytes | os.PathLike[str]) -> str:
    """Whichever way it is reached, as by /proc/self/fd."""
    folder, name = os.path.split(os.fsdecode(path))
    return os.path.join(os.path.realpath(folder), name)


@cache  # an audit hook stays as long as the process
def _listen() -> None:
    sys.addaudithook(_heard)


def _heard(event: str, args: tuple[object, ...]) -> None:
    if not any(event == it.event for it in _waiting) or not isinstance(args[0], (str, bytes, os.PathLike)):
        return
    path = _place(args[0])
    for moment in [it for it in _waiting if (it.event, it.path) == (event, path)]:
        moment.left -= 1
        if not moment.left:
            _waiting.remove(moment)
            moment.act()
