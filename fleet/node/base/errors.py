"""Why a program of the node half gives up, as text for people; and what is undone then, or afterwards."""

import os
from contextlib import contextmanager

from fleet.node.base.types import Any, Callable, Iterator, Mapping, values
from fleet.node.base.wire import decode, send_exit, send_json, start


class Refused(Exception):
    """Why nothing, or nothing more, is done; busy: because another one is at it just now."""

    def __init__(self, message: str, hint: "str | None" = None, busy: bool = False) -> None:
        Exception.__init__(self, message)
        self.message, self.hint, self.busy = message, hint, busy


@contextmanager
def closing(fd: int) -> "Iterator[int]":
    """Yields a descriptor, and closes it afterwards."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def on_failure(undo: "Callable[[], object]") -> "Iterator[None]":
    """Calls `undo` if the block raises, whatever that is."""
    try:
        yield
    except BaseException:
        undo()
        raise


@contextmanager
def on_os_error(of: "Callable[..., Exception]", what: str, *hint: str, **about: "Any") -> "Iterator[None]":
    """Raises an error for an OSError: `what`, and the reason. of: its class. hint, about: its other arguments."""
    try:
        yield
    except OSError as error:
        raise of("%s: %s" % (what, error.strerror), *hint, **about) from None


def failed(
    error: BaseException, shown: "Callable[[bytes], str]" = decode, where: "str | None" = None, again: str = ""
) -> "values.Failed":
    """The message about what ended a program: what it refused, or what failed: an OSError (shutil.Error is one, too,
    without errno), or a fault. shown: what people call a path in it; where: what it was about if the error does not
    name it; again: what to do once there is space."""
    if isinstance(error, Refused):
        return {"event": "failed", "message": error.message, "hint": error.hint}
    import errno

    name = getattr(error, "filename", None) or where
    name = shown(name) if isinstance(name, bytes) else name
    if not isinstance(error, OSError):
        reason = "%s: %s" % (type(error).__name__, error)
    else:
        reason = error.strerror or str(error)[:300]
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    message = "%s: %s" % (name, reason) if name else reason
    return {"event": "failed", "message": message, "hint": "free some space there" + again if full else None}


def answer(
    work: "Callable[[Any], Mapping[str, Any] | None]",
    expected: "tuple[type[Exception], ...]" = (Refused, OSError, ValueError),
) -> None:
    """Runs a program that reports one thing last: what `work` makes of its spec, if anything, or why it gave up.
    expected: errors by which it gives up; others are faults of fleet."""
    spec = start()
    result: Mapping[str, Any] | None
    try:
        result = work(spec)
    except expected as error:
        result = failed(error)
    if result is not None:
        send_json(result)
    send_exit(0)
