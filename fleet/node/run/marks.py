"""Marks a run's processes: by a variable in their environment, and by a limit that the kernel keeps for each process.

The limit is RLIMIT_RTTIME, the time that a real-time process may run without a pause. Its value is made of the run's id
and is some 70,000 years, so it has no effect. Child processes inherit the limit, and `env -i` does not remove it. The
limit needs no privilege and no running process of fleet.
"""

import os
import resource
from contextlib import suppress
from hashlib import sha256

from fleet.node.base.processes import has_env, pids, read_file, start_time
from fleet.protocol.state import RUN_MARK

LOOKS = 10  # the most scans of all processes in one search


def limit_of(run: str) -> int:
    return 1 << 61 | int.from_bytes(sha256(run.encode()).digest()[:7], "big")


def put_limit(run: str) -> None:
    """Sets the limit for this process and its later children. Does nothing if the process has a lower limit already."""
    with suppress(OSError, ValueError, AttributeError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (limit_of(run),) * 2)


def marked(run: str) -> "dict[int, int]":
    """Returns {pid: start time} of the live processes with either mark, without this process."""
    # the environment is read last: if a process hangs in a page fault, reading its environment may hang, too
    pair, limit = ("%s=%s" % (RUN_MARK, run)).encode(), b"%d" % limit_of(run)
    found: dict[int, int] = {}
    seen: set[int] = set()
    for _ in range(LOOKS):
        new = set(pids()) - seen  # later scans find children of processes that have ended since the first scan
        seen |= new
        for pid in new - {os.getpid()}:
            if limit in read_file("/proc/%d/limits" % pid) or has_env(pid, pair):
                born = start_time(pid)
                if born is not None:
                    found[pid] = born
        if not new:
            break
    return found
