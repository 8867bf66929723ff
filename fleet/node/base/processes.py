"""Processes as /proc shows them, and the end of those that carry a mark in their environment."""

import _signal
import os
import time


def read_file(path: "bytes | str", limit: int = 1 << 20) -> bytes:
    """Bytes of a /proc-like file, b"" when it is gone or forbidden."""
    try:
        with open(path, "rb") as f:
            return f.read(limit)
    except OSError:
        return b""


def pids() -> "list[int]":
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat_of(pid: int, thread: str = "") -> "list[bytes]":
    """What /proc/PID/stat says behind the name: the state's letter, the parent, ...; [] when it is gone. thread:
    "/task/TID" of one of its threads."""
    return read_file("/proc/%d%s/stat" % (pid, thread)).rpartition(b")")[2].split()


def state_of(pid: int, thread: str = "") -> str:
    """One letter, as ps has it; "" when it is gone."""
    return b"".join(stat_of(pid, thread)[:1]).decode("ascii")


def start_time(pid: int) -> "int | None":
    """Clock ticks since boot at which pid started, or None when it is gone (or a zombie)."""
    stat = stat_of(pid)
    return int(stat[19]) if stat and stat[0] not in (b"Z", b"X") else None


def environment(pid: int) -> "dict[bytes, bytes]":
    """What it was exec'ed with; {} when it is gone, another user's, or in the middle of its exec."""
    items = read_file("/proc/%d/environ" % pid, 1 << 22).split(b"\0")
    return {name: value for name, equals, value in (item.partition(b"=") for item in items) if equals}


def has_env(pid: int, pair: bytes) -> bool:
    """Whether it was exec'ed with NAME=VALUE, or inherited it: no session or parent that it moved to changes that."""
    return pair in read_file("/proc/%d/environ" % pid, 1 << 22).split(b"\0")


def pids_with_env(name: str, value: str) -> "list[tuple[int, int]]":
    """[(pid, start_time)] of live processes whose environment holds NAME=VALUE, this one excepted."""
    wanted = ("%s=%s" % (name, value)).encode()
    found = []
    for pid in pids():
        if pid != os.getpid() and has_env(pid, wanted):
            born = start_time(pid)
            if born is not None:
                found.append((pid, born))
    return found


def signal_marked(name: str, value: str, signum: int) -> int:
    """Send signum to every process with NAME=VALUE in its environment; returns how many there were."""
    found = pids_with_env(name, value)
    for pid, born in found:
        if start_time(pid) == born:
            try:
                os.kill(pid, signum)
            except OSError:
                pass
    return len(found)


def end_marked(name: str, value: str, grace: float, poll: float = 0.05, hard: float = 10.0) -> "list[int]":
    """SIGTERM, wait up to `grace` seconds, SIGKILL until none is left; returns the pids that would not die."""
    deadline = time.monotonic() + grace
    if grace > 0:
        signal_marked(name, value, _signal.SIGTERM)
        while time.monotonic() < deadline:
            left = pids_with_env(name, value)
            if not left:
                return []
            time.sleep(poll)
    deadline = time.monotonic() + hard
    while time.monotonic() < deadline:
        if not signal_marked(name, value, _signal.SIGKILL):
            return []
        time.sleep(poll)
    return [pid for pid, _ in pids_with_env(name, value)]
