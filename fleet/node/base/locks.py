"""Locks on files: of one that holds the lock alone, of several that share it, and who that is."""

import errno
import fcntl
import os
import time

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.types import Callable, values
from fleet.node.base.wire import encode
from fleet.protocol.state import LOCK

QUIET_SECONDS = 8.0  # a head speaks every two


def wait_for(fd: int, kind: int, seconds: float, meanwhile: "Callable[[], bool] | None" = None) -> bool:
    """Whether we got this lock in that time; meanwhile(), between tries, ends the wait by what is true."""
    until = time.monotonic() + seconds
    while not try_lock(fd, kind):
        if time.monotonic() >= until or meanwhile is not None and meanwhile():
            return False
        time.sleep(0.05)
    return True


def take_lock(meta: bytes, spec: "values.Delivery") -> "tuple[int | None, str | None]":
    """The lock's descriptor; None when another host of this very sync has it: one folder, several nodes. Whose head is
    silent gives it up after its patience, which is waited for: a link that was cut shows to the head at once."""
    fd = os.open(os.path.join(meta, encode(LOCK)), os.O_RDWR | os.O_CREAT, 0o600)

    def is_ours() -> bool:
        return bool(holder_of(fd).get("sync") == spec["sync"])

    def is_heard() -> bool:
        return time.time() - os.fstat(fd).st_mtime < QUIET_SECONDS

    got = wait_for(fd, fcntl.LOCK_EX, spec.get("wait", 0.0), is_ours)
    if not got and not is_ours():
        got = wait_for(fd, fcntl.LOCK_EX, spec.get("patience", 0.0), is_heard)
    if got:
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"sync": spec["sync"], "host": spec["host"], "head": spec["head"]}).encode(), 0)
        return fd, None
    holder = holder_of(fd)
    if holder.get("sync") == spec["sync"]:
        return None, holder.get("host")
    raise Refused(
        "another sync to the same folder is under way, from %s" % held_by(fd),
        "wait for it to end, then run this again",
        busy=True,
    )


def try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.lockf(fd, kind | fcntl.LOCK_NB)
        return True
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False


def held_by(fd: int) -> str:
    """From where the lock was taken last, alone."""
    return holder_of(fd).get("head", "?")


def holder_of(fd: int) -> "dict[str, str]":
    """Who took the lock last, alone: {"sync", "host", "head"}, or {}."""
    try:
        holder = json.loads(os.pread(fd, 4096, 0).decode())
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}
