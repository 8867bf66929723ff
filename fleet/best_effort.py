"""Does work that the rest does not depend on. What fails of it is remembered, and `-v` shows it at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_left_out: dict[str, str] = {}  # what could not be done -> the last reason


@contextmanager
def best_effort(what: str, errors: type[Exception] | tuple[type[Exception], ...] = OSError) -> Iterator[None]:
    """Leaves the block at one of these errors, and remembers it. what: such as "write the cache"; a constant text, as a
    process that runs for long keeps one reason for each."""
    try:
        yield
    except errors as error:
        _left_out[what] = getattr(error, "strerror", None) or str(error)


def left_out() -> dict[str, str]:
    """Returns what could not be done since the last call -> the last reason."""
    found = dict(_left_out)
    _left_out.clear()
    return found
