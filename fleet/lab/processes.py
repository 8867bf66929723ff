"""Finding, stopping and ending the lab's processes: by a mark in their environment, never by a name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fleet.errors import LabError
from fleet.node.base.processes import pids, pids_with_env, start_time, state_of

MARK = "FLEET_LAB_STATE"  # set for the lab's own processes only, never by a user


def is_alive(pid: int | None, started: int | None) -> bool:
    """Whether that very process lives: a pid alone may have been given to another one."""
    return pid is not None and started is not None and start_time(pid) == started


def marked(state_dir: Path) -> list[int]:
    """The lab's switch and first processes (zombies excepted), whatever became of their parents."""
    return [pid for pid, _ in pids_with_env(MARK, str(state_dir))]


def namespace(pid: int) -> str | None:
    """Which pid namespace it lives in; None when it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def inside(init: int) -> list[int]:
    """Every process in the pid namespace of `init`, itself included."""
    own = namespace(init)
    return [pid for pid in pids() if own is not None and namespace(pid) == own]


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end_all(find: Callable[[], Iterable[int]], within: float = 20.0) -> None:
    """SIGKILL what `find` returns, until it returns nothing. LabError when something outlives `within` seconds."""
    deadline = time.monotonic() + within
    ended: set[int] = set()
    while left := list(find()):
        if time.monotonic() > deadline:
            raise LabError(f"cannot end process {left[0]}", hint="it may hang in the kernel; see `dmesg`")
        for pid in left:
            send(pid, signal.SIGKILL)
        ended.update(left)
        time.sleep(0.01)
    # this machine's init collects them any moment now, and their namespaces go; in some containers it never does
    deadline = time.monotonic() + 2
    while any(map(state_of, ended)) and time.monotonic() < deadline:
        time.sleep(0.01)


def freeze(init: int, within: float = 10.0) -> None:
    """Stop every process of the host, until none is left that runs; the kernel still answers TCP for it."""
    deadline = time.monotonic() + within
    waiting: set[int] = set()  # in the kernel; they stop when they come back
    while running := [pid for pid in inside(init) if state_of(pid) not in ("T", "Z", "X", "") and pid not in waiting]:
        for pid in running:
            send(pid, signal.SIGSTOP)
        waiting.update(pid for pid in running if state_of(pid) == "D")
        if time.monotonic() > deadline:
            raise LabError(f"cannot stop process {running[0]}")


def thaw(init: int) -> None:
    for pid in inside(init):
        send(pid, signal.SIGCONT)
