"""Finding, stopping and ending the lab's processes: by a mark in their environment, never by a name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fleet.errors import LabError

PROC = Path("/proc")
MARK = "FLEET_LAB_STATE"  # set for the lab's own processes only, never by a user


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks after boot; None when it is gone or a zombie."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(pid: int | None, started: int | None) -> bool:
    """Whether that very process lives: a pid alone may have been given to another one."""
    return pid is not None and started is not None and start_time(pid) == started


def state_of(pid: int) -> str:
    """The process state letter (R, S, D, T, Z...), "" when it is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def marked(state_dir: Path) -> list[int]:
    """The lab's switch and first processes (zombies excepted), whatever became of their parents."""
    wanted = f"{MARK}={state_dir}".encode()
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):
            path = PROC / str(pid)
            if path.stat().st_uid == os.geteuid() and wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def inside(init: int) -> list[int]:
    """Every process in the pid namespace of `init`, itself included."""
    try:
        namespace = (PROC / str(init) / "ns/pid").stat().st_ino
    except OSError:
        return []
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):
            if (PROC / str(pid) / "ns/pid").stat().st_ino == namespace:
                found.append(pid)
    return found


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end_all(find: Callable[[], Iterable[int]], within: float = 20.0) -> None:
    """SIGKILL what `find` returns, until it returns nothing. LabError when something outlives `within` seconds."""
    deadline = time.monotonic() + within
    ended: set[int] = set()
    while left := [pid for pid in find() if start_time(pid) is not None]:
        if time.monotonic() > deadline:
            raise LabError(f"cannot end process {left[0]}", hint="it may hang in the kernel; see `dmesg`")
        for pid in left:
            send(pid, signal.SIGKILL)
        ended.update(left)
        time.sleep(0.01)
    # Their parent, this machine's init, collects them any moment now; in some containers it never does.
    deadline = min(deadline, time.monotonic() + 2)
    while any(state_of(pid) == "Z" for pid in ended) and time.monotonic() < deadline:
        time.sleep(0.01)


def freeze(init: int, within: float = 10.0) -> None:
    """Stop every process of the host, until none is left that runs; the kernel still answers TCP for it."""
    deadline = time.monotonic() + within
    stopped: set[int] = set()
    while running := [p for p in inside(init) if state_of(p) not in ("T", "Z", "X", "") and p not in stopped]:
        for pid in running:
            send(pid, signal.SIGSTOP)
            if state_of(pid) == "D":  # waits in the kernel; it stops when it comes back
                stopped.add(pid)
        if time.monotonic() > deadline:
            raise LabError(f"cannot stop process {running[0]}")


def thaw(init: int) -> None:
    for pid in inside(init):
        send(pid, signal.SIGCONT)
