"""Does work on which no other work depends. Failures of such work are remembered, and `-v` shows them at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_left_out: dict[str, str] = {}  # work that could not be done -> the last reason


@contextmanager
def best_effort(what: str, errors: type[Exception] | tuple[type[Exception], ...] = OSError) -> Iterator[None]:
    """Leaves the block at one of these errors, and remembers the error. what: the work, such as "write the cache". It
    must be a constant text, because a process that runs for long keeps one reason for each text."""
    try:
        yield
    except errors as error:
        _left_out[what] = getattr(error, "strerror", None) or str(error)


def left_out() -> dict[str, str]:
    """Returns the work that could not be done since the last call -> the last reason."""
    found = dict(_left_out)
    _left_out.clear()
    return found
