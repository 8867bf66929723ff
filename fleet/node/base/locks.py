"""Locks files, exclusively or shared, and reports which process holds a lock.

Some file systems have no locks (Lustre without -o flock, some FUSE ones). There a "held file" next to the locked file
takes the place of the lock: NAME.held for an exclusive lock, NAME.held-MACHINE-PID for each process that shares one. A
held file names the process that made it. If that process was of this machine and is dead, the held file is removed. A
held file of another machine's process stays.
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

QUIET_SECONDS = 8.0  # after this time without a message a head is silent: it sends one every 2 s
ALONE_SECONDS = 10.0  # exclusive_lock() waits at most this long
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of a file system without locks
HELD = ".held"
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_made: "dict[int, bytes]" = {}  # descriptor of a locked file -> path of the held file that this process made


def wait_for(
    fd: int,
    kind: int,
    seconds: float,
    meanwhile: "Callable[[], bool] | None" = None,
    lock: "Callable[[int, int], object] | None" = None,
) -> bool:
    """Tries to lock a file for `seconds`. Returns whether this process got the lock. Calls meanwhile() between tries,
    and gives up if meanwhile() returns True. kind: LOCK_EX or LOCK_SH. lock: see try_lock()."""
    until = time.monotonic() + seconds
    while not try_lock(fd, kind, lock):
        if time.monotonic() >= until or meanwhile is not None and meanwhile():
            return False
        time.sleep(0.05)
    return True


def take_lock(meta: bytes, spec: "values.Delivery") -> "tuple[int | None, str | None]":
    """Locks the state folder `meta` of a delivery. Returns (descriptor of the lock, None). Returns (None, HOST) if
    another host of the same sync holds the lock, because nodes share the folder. Raises Refused if another sync holds
    it. A program whose head is silent ends after the spec's `patience`, in seconds. So this function waits that long
    for a lock whose holder has received no message for QUIET_SECONDS."""
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
    """Tries to lock a file, without waiting. Returns whether this process got the lock. kind: LOCK_EX or LOCK_SH. lock:
    the function that locks. The default, lockf, makes the process hold the lock; flock makes the descriptor hold it."""
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
    """Does the same as try_lock(), by a held file next to the locked file. alone: the lock is exclusive. If the process
    wants a shared lock and its descriptor is read-only, it makes no held file: it only checks for those of others."""
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
    """Makes a held file, with its content from the beginning. Returns False if the file exists already. over: replaces
    an existing file. who: the process that the file names, see myself()."""
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
    except OSError:  # the file system has no hard links. Without them the held file is empty for a moment
        os.close(os.open(path, NEW, 0o600))
        os.rename(new, path)


def maker(path: bytes) -> "dict[str, Any]":
    """Returns the process that made a held file, see myself(). Returns {} if the file is missing or incomplete."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            return json.loads_object(file.read(4096))
    except OSError:
        return {}


def may_live(path: bytes) -> bool:
    return os.path.lexists(path) and lives(maker(path)) is not False


def is_freed(path: bytes) -> bool:
    """Removes a held file if it names a dead process of this machine. Returns whether the file is gone.

    No other machine's process removes the file, and those of this machine do so one at a time. So a file that names a
    dead process cannot become a live process's before it is removed."""
    with suppress(OSError), closing(os.open("/proc/self/ns/pid", os.O_RDONLY)) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        who = maker(path)
        if lives(who) is False and maker(path) == who:  # another process may have replaced it between the reads
            os.unlink(path)
    return not os.path.lexists(path)


def adopt(fd: int) -> None:
    """Makes this process the holder of the lock of an inherited descriptor: the held file, if there is one, names this
    process from now on."""
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
    """Releases a lock by closing its descriptor. handed_over: another process holds the lock by its own descriptor from
    now on, so that the held file stays."""
    if handed_over:
        _made.pop(fd, None)
    drop(fd)
    os.close(fd)


@contextmanager
def exclusive_lock(fd: int) -> "Iterator[None]":
    """Holds an exclusive lock of an open file during the block. Raises OSError if the lock is not free within
    ALONE_SECONDS."""
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
    """Returns a hint how to remove the held file, if it is not known whether its process is alive: the process is of
    another machine, or the file is incomplete. Otherwise returns ""."""
    path = os.readlink(b"/proc/self/fd/%d" % fd) + encode(HELD)
    who = maker(path)
    if not os.path.lexists(path) or lives(who) is not None:
        return ""
    import shlex  # it takes long to import

    machine = who.get("machine") or "who made it"
    return "; where %s is gone for good: rm %s" % (machine, shlex.quote(decode(path)))


def held_by(fd: int) -> str:
    """Returns the host name and pid of the head whose sync last took the lock exclusively, or "?" if unknown."""
    return holder_of(fd).get("head", "?")


def holder_of(fd: int) -> "dict[str, str]":
    """Returns {"sync": its id, "host", "head"} of the last exclusive holder of the lock, or {} if unknown."""
    try:
        return json.loads_object(os.pread(fd, 4096, 0))
    except OSError:
        return {}
