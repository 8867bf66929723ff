"""Why a program of the node half gives up, in words for people."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


class Refused(Exception):
    """message, hint; and "busy" where another one is at it just now"""


class Trouble(Exception):
    """message, hint"""


def told(
    error: BaseException, shown: "Callable[[bytes], str]" = str, where: "str | None" = None, again: str = ""
) -> "tuple[str, str | None]":
    """(message, hint) for what ended a program: what it refused, or what failed: an OSError (shutil.Error is one, too,
    without errno), or a fault. shown: what people call a path in it; where: what it was about if the error does not
    say; again: what to do once there is space."""
    if isinstance(error, (Refused, Trouble)):
        return error.args[0], error.args[1]
    import errno

    name = getattr(error, "filename", None) or where
    name = shown(name) if isinstance(name, bytes) else name
    if not isinstance(error, OSError):
        reason = "%s: %s" % (type(error).__name__, error)
    else:
        reason = error.strerror or str(error)[:300]
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    return "%s: %s" % (name, reason) if name else reason, "free some space there" + again if full else None
