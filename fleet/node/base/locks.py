"""Locks on files: of one that holds the lock alone, of several that share it, and who that is.

Where a file system has none (Lustre without -o flock, some FUSE ones), a file next to the locked one takes the place of
the lock. NAME.held is of a process that holds it alone, NAME.held-MACHINE-PID of each that shares it; the file names
the process that made it. What a dead process of this machine has left is taken away; that of one of which nothing is
known here stays.
"""

import errno
import fcntl
import os
import time
from contextlib import contextmanager, suppress

from fleet.node.base import json
from fleet.node.base.errors import Refused, closing
from fleet.node.base.processes import lives, myself
from fleet.node.base.types import Any, Callable, Iterator, values
from fleet.node.base.wire import at_end, decode, encode
from fleet.protocol.state import LOCK

QUIET_SECONDS = 8.0  # a head speaks every two
ALONE_SECONDS = 10.0
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of a file system
HELD = ".held"
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_made: "dict[int, bytes]" = {}  # descriptor of a locked file -> the file that takes the place of the lock


def wait_for(
    fd: int,
    kind: int,
    seconds: float,
    meanwhile: "Callable[[], bool] | None" = None,
    lock: "Callable[[int, int], object] | None" = None,
) -> bool:
    """Returns whether we got this lock in that time; meanwhile(), between tries, ends the wait by what is true. lock:
    as try_lock() has it."""
    until = time.monotonic() + seconds
    while not try_lock(fd, kind, lock):
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

    def is_fresh() -> bool:
        return time.time() - os.fstat(fd).st_mtime < QUIET_SECONDS

    got = wait_for(fd, fcntl.LOCK_EX, spec.get("wait", 0.0), is_ours)
    if not got and not is_ours():
        got = wait_for(fd, fcntl.LOCK_EX, spec.get("patience", 0.0), is_fresh)
    if got:
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"sync": spec["sync"], "host": spec["host"], "head": spec["head"]}).encode(), 0)
        return fd, None
    holder = holder_of(fd)
    if holder.get("sync") == spec["sync"]:
        return None, holder.get("host")
    raise Refused(
        "another sync to the same folder is under way, from %s" % held_by(fd),
        "wait for it to end, then run this again" + way_out(fd),
        busy=True,
    )


def try_lock(fd: int, kind: int, lock: "Callable[[int, int], object] | None" = None) -> bool:
    """Returns whether we got it. lock: flock where the descriptor, and not this process, is to hold it."""
    try:
        (lock or fcntl.lockf)(fd, kind | fcntl.LOCK_NB)
        return True
    except OSError as error:
        if error.errno in NO_LOCKS:
            return try_file(fd, kind == fcntl.LOCK_EX)
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False


def try_file(fd: int, alone: bool) -> bool:
    """Does as try_lock(), by a file. Who shares a lock and cannot write there only looks."""
    path = os.readlink(b"/proc/self/fd/%d" % fd) + encode(HELD)
    who = myself()
    mine = path if alone else path + encode("-%s-%d" % (who["machine"].replace("/", "_"), who["pid"]))
    writes = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    if (alone or writes) and not (make(mine, who) or is_freed(mine) and make(mine, who)):
        return False
    around = os.path.dirname(path)
    sharing = [os.path.join(around, name) for name in os.listdir(around)] if alone else []
    if any(may_live(other) for other in sharing if other.startswith(path + b"-")) or not alone and may_live(path):
        if alone or writes:
            os.unlink(mine)
        return False
    if alone or writes:
        _made[fd] = mine
        at_end.append(lambda: drop(fd))
    return True


def make(path: bytes, who: "dict[str, Any]", over: bool = False) -> bool:
    """Makes such a file, whole at once. Returns False where there is one, unless it is put `over` that."""
    if not over and os.path.lexists(path):
        return False
    new = path + b".%d" % int.from_bytes(os.urandom(6), "big")
    fd = os.open(new, NEW, 0o600)
    try:
        with closing(fd):
            os.write(fd, json.dumps(who).encode())
        (os.rename if over else link)(new, path)
        return True
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(new)


def link(new: bytes, path: bytes) -> None:
    try:
        os.link(new, path)
    except FileExistsError:
        raise
    except OSError:  # the file system has no such links: what is made there is empty for a moment
        os.close(os.open(path, NEW, 0o600))
        os.rename(new, path)


def maker(path: bytes) -> "dict[str, Any]":
    """Returns who made such a file; {} of one that is being written, or damaged."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            return json.loads_object(file.read(4096))
    except OSError:
        return {}


def may_live(path: bytes) -> bool:
    return os.path.lexists(path) and lives(maker(path)) is not False


def is_freed(path: bytes) -> bool:
    """Takes away what a dead process has left. Only processes of its machine do that, one at a time: what names a dead
    process stays what it is meanwhile. Returns whether nothing is there."""
    with suppress(OSError), closing(os.open("/proc/self/ns/pid", os.O_RDONLY)) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        who = maker(path)
        if lives(who) is False and maker(path) == who:  # what was read may have been released, and another's by then
            os.unlink(path)
    return not os.path.lexists(path)


def adopt(fd: int) -> None:
    """Becomes the one who holds a lock that an open descriptor was handed over with."""
    path = os.readlink(b"/proc/self/fd/%d" % fd) + encode(HELD)
    if os.path.lexists(path):
        make(path, myself(), over=True)
        _made[fd] = path


def drop(fd: int) -> None:
    path = _made.pop(fd, None)
    if path is not None:
        with suppress(OSError):
            os.unlink(path)


def release(fd: int, handed_over: bool = False) -> None:
    """Closes the descriptor. handed_over: another one of it holds the lock from now on."""
    if handed_over:
        _made.pop(fd, None)
    drop(fd)
    os.close(fd)


@contextmanager
def alone(fd: int) -> "Iterator[None]":
    """Holds the lock of an open file meanwhile. OSError where it is not to be had within ALONE_SECONDS."""
    if not wait_for(fd, fcntl.LOCK_EX, ALONE_SECONDS, lock=fcntl.flock):
        raise OSError(
            errno.EAGAIN, "another process holds its lock" + way_out(fd), os.readlink("/proc/self/fd/%d" % fd)
        )
    try:
        yield
    finally:
        drop(fd)
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)


def way_out(fd: int) -> str:
    """Returns what to do where the holder is of a machine that may be gone, or was killed before it wrote who it is; ""
    where that is not so."""
    path = os.readlink(b"/proc/self/fd/%d" % fd) + encode(HELD)
    who = maker(path)
    if not os.path.lexists(path) or lives(who) is not None:
        return ""
    import shlex  # it takes long to import

    machine = who.get("machine") or "who made it"
    return "; where %s is gone for good: rm %s" % (machine, shlex.quote(decode(path)))


def held_by(fd: int) -> str:
    """From where the lock was taken last, alone."""
    return holder_of(fd).get("head", "?")


def holder_of(fd: int) -> "dict[str, str]":
    """Returns who took the lock last, exclusively: {"sync", "host", "head"}, or {}."""
    try:
        return json.loads_object(os.pread(fd, 4096, 0))
    except OSError:
        return {}
