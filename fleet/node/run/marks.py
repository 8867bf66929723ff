"""Marks a run's processes: by a variable in their environment, and a limit that the kernel keeps of each.

The limit is the time that a process of a real-time class may run without a pause: a number of the run's own, of some
70,000 years, which limits nothing. No `env -i` takes it away, and each process hands it down to its children. It needs
no right and no process of ours that lives.
"""

import os
import resource
from contextlib import suppress
from hashlib import sha256

from fleet.node.base.processes import has_env, pids, read_file, start_time
from fleet.protocol.state import RUN_MARK

LOOKS = 10


def limit_of(run: str) -> int:
    return 1 << 61 | int.from_bytes(sha256(run.encode()).digest()[:7], "big")


def put_limit(run: str) -> None:
    """On this process and all that it starts; best effort: who is limited already keeps that."""
    with suppress(OSError, ValueError, AttributeError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (limit_of(run),) * 2)


def marked(run: str) -> "dict[int, int]":
    """{pid: start_time} of the live processes that carry one mark or the other, this one excepted."""
    # the environment last: reading that of a process which hangs in a page fault may hang, too
    pair, limit = ("%s=%s" % (RUN_MARK, run)).encode(), b"%d" % limit_of(run)
    found: dict[int, int] = {}
    seen: set[int] = set()
    for _ in range(LOOKS):
        new = set(pids()) - seen  # at the second look what those of the first have started, and ended themselves
        seen |= new
        for pid in new - {os.getpid()}:
            if limit in read_file("/proc/%d/limits" % pid) or has_env(pid, pair):
                born = start_time(pid)
                if born is not None:
                    found[pid] = born
        if not new:
            break
    return found
