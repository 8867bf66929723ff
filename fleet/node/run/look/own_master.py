"""Launchers that a script of the user's started, and ranks of its own: those that wait for others at this very node."""

import re

from fleet.node.base.processes import environment, read_file
from fleet.node.base.run_folder import RANK_WRAPPER
from fleet.node.facts.way import is_here
from fleet.node.run.marks import marked

LAUNCHER = re.compile(rb"torchrun|torch\.distributed|accelerate|deepspeed|colossalai")
NODES = re.compile(rb"\0--(?:nnodes|num[_-](?:machines|nodes))[=\0](?:\d+:)?(\d+)")
MASTER = re.compile(rb"\0--(?:master[_-]addr|rdzv[_-]endpoint|main[_-]process[_-]ip)[=\0]([^\0]+)")


def own_master(run: str) -> "str | None":
    """Returns where a launcher, or a rank, of several nodes' meets the others, where that is an address of this node.
    Those that fleet gave it to are left out."""
    found = {pid: environment(pid) for pid in sorted(marked(run))}
    given = {env.get(b"MASTER_ADDR") for pid, env in found.items() if read_file("/proc/%d/comm" % pid) == RANK_WRAPPER}
    for pid, env in found.items():
        address = master_of(read_file("/proc/%d/cmdline" % pid), env)
        if address and address not in given and is_own(address.decode("utf-8", "replace")):
            return address.decode("utf-8", "replace")
    return None


def master_of(argv: bytes, env: "dict[bytes, bytes]") -> "bytes | None":
    """Returns where a process meets others; None where it is alone in its world, or no part of one."""
    if LAUNCHER.search(argv):
        nodes, master = NODES.search(argv), MASTER.search(argv)
        several = nodes is not None and int(nodes.group(1)) > 1
        return (master.group(1) if master else env.get(b"PET_MASTER_ADDR", b"127.0.0.1")) if several else None
    size, here = env.get(b"WORLD_SIZE", b""), env.get(b"LOCAL_WORLD_SIZE", b"1")
    several = size.isdigit() and here.isdigit() and int(size) > int(here)
    return env.get(b"MASTER_ADDR") if several and b"RANK" in env else None


def is_own(address: str) -> bool:
    """Is true where this node has that address, by number or by name; a port may follow it."""
    return is_here(re.sub(r"^\[(.*)\](:\d+)?$|^([^:]*):\d+$", r"\1\3", address))
