"""Describes why a node program gives up, as text for people. Its context managers undo work after an error, or at the
end of a block."""

import os
from contextlib import contextmanager

from fleet.node.base.types import Any, Callable, Iterator, Mapping, values
from fleet.node.base.wire import decode, send_exit, send_json, start


class Refused(Exception):
    """Is raised if a program cannot begin its work, or cannot go on. message: the reason. hint: the next step, or None.
    busy: another process does the same work now."""

    def __init__(self, message: str, hint: "str | None" = None, busy: bool = False) -> None:
        Exception.__init__(self, message)
        self.message, self.hint, self.busy = message, hint, busy


@contextmanager
def closing(fd: int) -> "Iterator[int]":
    """Yields a descriptor, and closes it at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def on_failure(undo: "Callable[[], object]") -> "Iterator[None]":
    """Calls `undo` if the block raises any exception."""
    try:
        yield
    except BaseException:
        undo()
        raise


@contextmanager
def on_os_error(of: "Callable[..., Exception]", what: str, *hint: str, **about: "Any") -> "Iterator[None]":
    """Replaces an OSError of the block by an exception of class `of`, whose message is `what` and the OSError's reason.
    hint, about: the other arguments of that exception."""
    try:
        yield
    except OSError as error:
        raise of("%s: %s" % (what, error.strerror), *hint, **about) from None


def failed(
    error: BaseException, shown: "Callable[[bytes], str]" = decode, where: "str | None" = None, again: str = ""
) -> "values.Failed":
    """Returns the message about the error that ended a program: Refused, an OSError, or a fault of fleet. (shutil.Error
    is an OSError without errno.)

    shown: returns a path as people write it. where: the path to name, if the error names none. again: the end of the
    hint about a full disk: what to do when there is space again."""
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
    """Runs a program that sends one message. That is the result of work(spec), or the reason why the program gave up.
    If the result is None, the program sends no message. expected: the errors by which work() gives up; any other error
    is a fault of fleet."""
    spec = start()
    result: Mapping[str, Any] | None
    try:
        result = work(spec)
    except expected as error:
        result = failed(error)
    if result is not None:
        send_json(result)
    send_exit(0)
