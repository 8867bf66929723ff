"""Locks on files: of one that holds the lock alone, of several that share it, and who that is."""

import errno
import fcntl
import json
import os
import time

from fleet.node.base.errors import Refused


def wait_for(fd, kind, seconds):
    """Whether we got this lock in that time."""
    until = time.monotonic() + seconds
    while not try_lock(fd, kind):
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
    return True


def take_lock(meta, spec):
    """The lock's descriptor; None when another host of this very sync has it: one folder, several nodes."""
    fd = os.open(os.path.join(meta, b"lock"), os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + spec.get("wait", 0)
    while not try_lock(fd, fcntl.LOCK_EX):
        holder = holder_of(fd)
        if holder.get("sync") == spec["sync"]:
            return None, holder.get("host")
        if time.monotonic() >= until:
            raise Refused(
                "another sync to the same folder is under way, from %s" % holder.get("head", "?"),
                "wait for it to end, then run this again",
                "busy",
            )
        time.sleep(0.1)
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps({k: spec[k] for k in ("sync", "host", "head")}).encode(), 0)
    return fd, None


def try_lock(fd, kind):
    try:
        fcntl.lockf(fd, kind | fcntl.LOCK_NB)
        return True
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False


def holder_of(fd):
    """Who took the lock last, alone: {"sync", "host", "head"}, or {}."""
    try:
        holder = json.loads(os.pread(fd, 4096, 0).decode())
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}
