"""Finds the training process of each rank on this node. Its stack shows where the rank is."""

import os

from fleet.node.base.processes import descendants_of, environment, is_ours, rank_wrappers
from fleet.node.run.marks import marked

ONCE_A_NODE = b"FLEET_FIRST_RANK"  # a wrapper (rank.py) has this variable if it runs once per node; its child has not
# variables that a launcher sets for its ranks: if they differ, a rank's own shell script has started a launcher
PLACE = (b"RANK", b"LOCAL_RANK", b"LOCAL_WORLD_SIZE", b"MASTER_PORT", b"TORCHELASTIC_RUN_ID")


def is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid)).startswith("python")
    except OSError:
        return False


def rank_of(env: "dict[bytes, bytes]") -> "int | None":
    """Returns the number that rank.py gives a process with this environment."""
    try:
        return int(env[ONCE_A_NODE] if ONCE_A_NODE in env else env[b"RANK"] if b"RANK" in env else env[b"LOCAL_RANK"])
    except (KeyError, ValueError):
        return None


def trainers(run: str) -> "dict[int, int]":
    """Returns {rank: pid of its training process}. For a rank that is a shell script, returns the ranks of a launcher
    that the script started, or if there are none the first Python process of the script."""
    found: dict[int, int] = {}
    for wrapper in filter(is_ours, rank_wrappers(marked(run))):
        for pid in (pid for pid, stat in descendants_of([wrapper]).items() if int(stat[1]) == wrapper):
            env, outer = environment(pid), environment(wrapper)
            rank = rank_of(env)
            # the process has overwritten its environment with a title, or is no rank, as it starts ranks itself
            if rank is None or ONCE_A_NODE in outer:
                rank = rank_of(outer)
            found.update(_inner(pid, env, rank) or {rank: pid} if rank is not None else {})
    return found


def _inner(pid: int, env: "dict[bytes, bytes]", outer_rank: int) -> "dict[int, int]":
    if is_python(pid):
        return {}
    found: dict[int, int] = {}
    first = None
    for inner in descendants_of([pid]):
        if is_python(inner):
            own = environment(inner)
            rank = rank_of(own)
            first = inner if first is None else first
            if rank is not None and any(own.get(name) != env.get(name) for name in PLACE):
                found.setdefault(rank, inner)
    return found or ({outer_rank: first} if first is not None else {})
