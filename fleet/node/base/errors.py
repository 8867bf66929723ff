"""Why a program of the node half gives up, as text for people."""

from fleet.node.base.types import Any, Callable, Mapping, values
from fleet.node.base.wire import send_exit, send_json, start


class Refused(Exception):
    """Why nothing, or nothing more, is done; busy: because another one is at it just now."""

    def __init__(self, message: str, hint: "str | None" = None, busy: bool = False) -> None:
        Exception.__init__(self, message)
        self.message, self.hint, self.busy = message, hint, busy


def failed(
    error: BaseException, shown: "Callable[[bytes], str]" = str, where: "str | None" = None, again: str = ""
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


def answer(work: "Callable[[Any], Mapping[str, Any]]") -> None:
    """A program that reports one thing: what `work` makes of its spec, or why that is not to be had."""
    spec = start()
    try:
        result = work(spec)
    except (Refused, OSError, ValueError) as error:
        result = failed(error)
    send_json(result)
    send_exit(0)
