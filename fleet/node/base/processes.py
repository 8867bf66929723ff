"""Reads processes from /proc, and ends those that have a mark in their environment."""

import _signal
import os
import time
from contextlib import suppress

from fleet.node.base.types import Any, Callable, Iterable, Iterator
from fleet.protocol.state import RANK_WRAPPER

POLL_SECONDS = 0.05


def forked(work: "Callable[[], object]") -> int:
    """Forks a process that only calls work(), and returns its pid. The process exits with 1 if work() raises, otherwise
    with 0."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def read_file(path: "bytes | str", limit: int = 1 << 20) -> bytes:
    """Returns the first `limit` bytes of a file, such as one of /proc. Returns b"" if the file is gone or
    unreadable."""
    try:
        with open(path, "rb") as f:
            return f.read(limit)
    except OSError:
        return b""


def names_in(folder: str) -> "list[str]":
    """Returns the names in a folder. Returns [] if the folder is gone or unreadable."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def pids() -> "list[int]":
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat_of(pid: int, thread: str = "") -> "list[bytes]":
    """Returns the fields of /proc/PID/stat after the name: the state's letter, the parent's pid, and so on. Returns []
    if the process is gone. thread: "/task/TID" reads the fields of one of its threads."""
    return read_file("/proc/%d%s/stat" % (pid, thread)).rpartition(b")")[2].split()


def state_of(pid: int, thread: str = "") -> str:
    """Returns the state of a process as ps shows it, such as "R". Returns "" if the process is gone."""
    return b"".join(stat_of(pid, thread)[:1]).decode("ascii")


def status_of(pid: int, field: bytes, thread: str = "") -> "list[bytes]":
    """Returns the values of a field of /proc/PID/status. Returns [] if the process is gone. thread: see stat_of()."""
    for line in read_file("/proc/%d%s/status" % (pid, thread)).split(b"\n"):
        if line.startswith(field + b":"):
            return line.split()[1:]
    return []


def own_pid(pid: int) -> int:
    """Returns the pid that a process has in its own pid namespace, such as its container's."""
    return int((status_of(pid, b"NSpid") or [b"%d" % pid])[-1])


def is_inside(pid: int) -> bool:
    """Returns whether a process is in a pid namespace below this one."""
    return len(status_of(pid, b"NSpid")) > len(status_of(os.getpid(), b"NSpid"))


def is_ours(pid: int) -> bool:
    """Returns whether a process runs as the same user as this one. fleet uses no data of other users' processes."""
    return set(status_of(pid, b"Uid")[:2]) == {b"%d" % os.geteuid()}


def open_files(pid: int) -> "Iterator[tuple[str, str]]":
    """Yields (path in /proc, path of the open file) for each descriptor of a process. Yields nothing if the process is
    gone, or another user's."""
    folder = "/proc/%d/fd/" % pid
    for name in names_in(folder):
        try:
            link = os.readlink(folder + name)
        except OSError:  # closed meanwhile
            continue
        yield folder + name, link


def start_time(pid: int) -> "int | None":
    """Returns the start time of a process, in clock ticks since boot. Returns None if the process is gone, or a
    zombie."""
    stat = stat_of(pid)
    return int(stat[19]) if stat and stat[0] not in (b"Z", b"X") else None


def boot_id() -> str:
    return read_file("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()


def stuck(pid: int) -> str:
    """Returns a text about a process that SIGKILL did not end. It names the kernel function in which the process
    hangs, if that is known."""
    stat = read_file("/proc/%d/stat" % pid)
    who = "%d %s" % (pid, stat[stat.find(b"(") : stat.rfind(b")") + 1].decode("utf-8", "replace"))
    if stat[stat.rfind(b")") + 2 :][:1] != b"D":
        return who
    where = read_file("/proc/%d/wchan" % pid).decode("ascii", "replace").strip("0")
    return "%s hangs in the kernel%s" % (who, where and ", in " + where)


def identity(pid: int) -> "dict[str, int | None]":
    return {"pid": pid, "start": start_time(pid)}


def myself() -> "dict[str, Any]":
    """Returns a record that identifies this process among those of all machines: {"pid", "start", "boot": the boot's
    id, "machine": the host name, "space": inode of its pid namespace}."""
    space = os.stat("/proc/self/ns/pid").st_ino if os.path.exists("/proc/self/ns/pid") else 0
    return dict(identity(os.getpid()), boot=boot_id(), machine=os.uname()[1], space=space)


def lives(who: "Any") -> "bool | None":
    """Returns whether the process of a myself() record is alive; False if the record is None. Returns None if that is
    unknown, because the record is invalid, or is of another machine or pid namespace."""
    me = myself()
    if who is None:
        return False
    if not isinstance(who, dict) or (who.get("machine"), who.get("space")) != (me["machine"], me["space"]):
        return None
    pid, start = who.get("pid"), who.get("start")
    if type(pid) is not int or pid <= 0 or type(start) is not int:
        return None
    return who.get("boot") == me["boot"] and start_time(pid) == start


def descendants_of(ancestors: "Iterable[int]") -> "dict[int, list[bytes]]":
    """Returns {pid: fields, see stat_of()} of all descendants of these processes. Children come before
    grandchildren."""
    children: dict[int, dict[int, list[bytes]]] = {}
    for pid in pids():
        stat = stat_of(pid)
        if stat:
            children.setdefault(int(stat[1]), {})[pid] = stat
    found: dict[int, list[bytes]] = {}
    todo = list(ancestors)
    for above in todo:
        under = children.pop(above, {})
        found.update(under)
        todo += under
    return found


def rank_wrappers(among: "Iterable[int]") -> "list[int]":
    """Returns the pids of the live processes that wrap a rank (rank.py). Omits a wrapper's child, which has the same
    name until it executes the rank's command."""
    named = {pid: stat_of(pid) for pid in among if read_file("/proc/%d/comm" % pid) == RANK_WRAPPER}
    return [pid for pid, stat in named.items() if stat and stat[0] not in (b"Z", b"X") and int(stat[1]) not in named]


def environment(pid: int) -> "dict[bytes, bytes]":
    """Returns the environment with which a process was started. Returns {} if the process is gone, belongs to another
    user, or is in the middle of exec."""
    items = read_file("/proc/%d/environ" % pid, 1 << 22).split(b"\0")
    return {name: value for name, equals, value in (item.partition(b"=") for item in items) if equals}


def has_env(pid: int, pair: bytes) -> bool:
    """Returns whether a process has `pair`, NAME=VALUE, in its environment. A process keeps it in a new session, and
    with a new parent."""
    return pair in read_file("/proc/%d/environ" % pid, 1 << 22).split(b"\0")


def with_env(name: str, value: str) -> "dict[int, int]":
    """Returns {pid: start time} of the other live processes with NAME=VALUE in their environment."""
    wanted = ("%s=%s" % (name, value)).encode()
    found = {pid: start_time(pid) for pid in pids() if pid != os.getpid() and has_env(pid, wanted)}
    return {pid: born for pid, born in found.items() if born is not None}


def send_signal(pid: int, born: int, signum: int) -> None:
    """Sends a signal to the process that was started at `born`, in clock ticks since boot. Does nothing if a later
    process has the pid."""
    if start_time(pid) in (born, None):
        with suppress(OSError):
            os.kill(pid, signum)


def end_all(find: "Callable[[], dict[int, int]]", grace: float, hard: float = 10.0) -> "dict[int, int]":
    """Ends processes: sends SIGTERM once, and waits up to `grace` seconds; then sends SIGKILL again and again, until no
    process is left, for at most `hard` seconds. find: returns {pid: start time} of the processes to end. Returns those
    that are left."""
    for signum, seconds in ((_signal.SIGTERM, grace), (_signal.SIGKILL, hard)):
        until, signalled = time.monotonic() + seconds, False
        while time.monotonic() < until:
            left = find() or find()  # a process in the middle of exec shows no environment for a moment
            if not left:
                return left
            # oldest first: a shell whose child ended first would go on with its next command
            oldest_first = sorted(left.items(), key=lambda item: item[::-1])
            for pid, born in oldest_first if signum == _signal.SIGKILL or not signalled else ():
                send_signal(pid, born, signum)
            signalled = True
            time.sleep(POLL_SECONDS)
    return find()
