"""Holds the rules about a host's system: versions, disk and memory, limits, environment, network, clock."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from fleet.rules.rule import MISSING, GiB, MiB, Rule, View, lookup

SAME_IMAGE = "bring the hosts to the same system release, or build in a container"


def sockets(view: View) -> str | None:
    """Returns the finding of a host with GPUs and without an active InfiniBand port; None for others."""
    return "none is active" if view.get("gpus") and view.get("infiniband_ports") == 0 else None


def workdir(view: View) -> str | None:
    found = lookup(view, "disks.workdir")
    closed = isinstance(found, Mapping) and not found["writable"]
    return f"{found['path']} is not writable for {view.get('user', 'this user')}" if closed else None


SYSTEM = (
    Rule(
        "glibc",
        "glibc",
        "equal",
        "glibc",
        SAME_IMAGE + "; wheels built on the newer one do not load on the older",
        "warning",
    ),
    Rule("os", "os", "equal", "system", SAME_IMAGE, "info"),
    Rule("kernel", "kernel", "equal", "kernel", "update and reboot to the same kernel", "warning"),
    Rule(
        "gcc",
        "compilers.gcc",
        "equal",
        "gcc",
        "ops compiled on the fly differ: install the same gcc, or name it in 'activate' (devtoolset)",
        "warning",
    ),
    Rule("ninja", "compilers.ninja", "equal", "ninja", "pip install ninja: torch compiles extensions with it", "info"),
    Rule("cpu-model", "cpu.model", "equal", "CPU", "fine, but the slowest host sets the pace", "info"),
    Rule(
        "cpu-count", "cpu.usable", "equal", "usable CPU count", "set the number of data loader workers by host", "info"
    ),
    Rule(
        "hugepages",
        "transparent_hugepages",
        "equal",
        "transparent huge pages",
        "set /sys/kernel/mm/transparent_hugepage/enabled the same everywhere",
        "info",
    ),
    Rule(
        "hostname",
        "hostname",
        "distinct",
        "hostname",
        "set a hostname of its own on each (hostnamectl): NCCL takes hosts of one name for one machine",
        "warning",
    ),
)

ROOM = (
    Rule(
        "disk-workdir",
        "disks.workdir.free",
        "minimum",
        "free in the workdir",
        "make room there, or set another 'workdir' in the inventory",
        levels=((64 * MiB, "error"), (10 * GiB, "warning")),
        unit="bytes",
    ),
    Rule(
        "workdir-writable",
        workdir,
        "clear",
        "the workdir",
        "change its owner, or set another 'workdir' in the inventory",
        "warning",
    ),
    Rule(
        "disk-home",
        "disks.home.free",
        "minimum",
        "free in the home folder",
        "make room there: fleet keeps a run's logs in ~/.fleet",
        levels=((64 * MiB, "error"), (1 * GiB, "warning")),
        unit="bytes",
    ),
    Rule(
        "disk-fleet",
        "disks.fleet.free",
        "minimum",
        "free in ~/.fleet",
        "make room on the disk that it is on: runs keep their logs there; 'fleet runs --prune' removes old ones",
        levels=((64 * MiB, "error"), (1 * GiB, "warning")),
        unit="bytes",
    ),
    Rule(
        "disk-tmp",
        "disks.tmp.free",
        "minimum",
        "free in /tmp",
        "make room there, or set TMPDIR in the inventory's 'env'",
        levels=((256 * MiB, "warning"),),
        unit="bytes",
    ),
    Rule(
        "shm-size",
        "disks.shm.total",
        "minimum",
        "in /dev/shm",
        "mount -o remount,size=50% /dev/shm: data loader workers and NCCL share memory there",
        levels=((1 * GiB, "warning"),),
        unit="bytes",
        when="several_ranks",
    ),
    Rule(
        "shm-tiny",
        "disks.shm.total",
        "minimum",
        "in /dev/shm",
        "mount -o remount,size=50% /dev/shm; a container is started with more: data loader workers need it",
        levels=((64 * MiB + 1, "warning"),),
        unit="bytes",
        run=True,
        covered_by=("shm-size",),
    ),
    *(
        Rule(
            f"inodes-{name}",
            f"disks.{name}.inodes",
            "minimum",
            f"inodes free {where}",
            "remove files there: 'df -i' shows where; no new file can be made, whatever room there is",
            levels=((100, "error"), (10_000, "warning")),
        )
        for name, where in (
            ("workdir", "in the workdir"),
            ("home", "in the home folder"),
            ("fleet", "in ~/.fleet"),
            ("shm", "in /dev/shm"),
        )
    ),
    Rule(
        "memory",
        "memory.available",
        "minimum",
        "memory available",
        "something else fills the memory there: see 'ps aux --sort=-rss | head'",
        levels=((1 * GiB, "warning"),),
        unit="bytes",
    ),
    Rule(
        "swap",
        "memory.swap_used",
        "maximum",
        "of swap in use",
        "training that swaps crawls: free memory, then swapoff -a && swapon -a",
        levels=((4 * GiB, "info"),),
        unit="bytes",
    ),
    Rule(
        "open-files",
        "limits.nofile",
        "minimum",
        "open files allowed",
        "raise 'nofile' in /etc/security/limits.conf: data loaders end with 'Too many open files'",
        levels=((1024, "warning"), (4096, "info")),
    ),
    Rule(
        "memlock",
        "limits.memlock",
        "minimum",
        "of memory that may be locked",
        "set 'memlock unlimited' in /etc/security/limits.conf: RDMA registers memory by locking it",
        levels=((float("inf"), "warning"),),
        unit="bytes",
        when="infiniband_ports",
    ),
)

DEBUG = "TORCH_DISTRIBUTED_DEBUG"
DETAIL = hashlib.sha256(b"DETAIL").hexdigest()[:12]


def detail(view: View) -> Any:
    """Returns {"TORCH_DISTRIBUTED_DEBUG=DETAIL": "set"} if the variable has that value, else {}; MISSING if the
    environment is unknown. A rank with it calls more collectives than others."""
    found = view.get("environment")
    return MISSING if found is None else {f"{DEBUG}=DETAIL": "set"} if found.get(DEBUG) == DETAIL else {}


ENVIRONMENT = (
    Rule(
        "environment-debug",
        detail,
        "contents",
        "variables that ranks inherit there",
        f"ranks would wait for each other for ever: --env {DEBUG}=OFF (or DETAIL) sets it for all",
        run=True,
    ),
    Rule(
        "environment",
        "environment",
        "contents",
        "variables that ranks inherit there",
        "/etc/environment, startup files or 'activate' set them: 'fleet exec -- env' shows; --env sets one for all",
        "warning",
        run=True,
    ),
)

INFINIBAND = (
    ("rate", "rate", "InfiniBand rate", "the slowest port sets the pace: look at its cable, and at the switch's port"),
    (
        "layer",
        "link_layer",
        "link layer of InfiniBand ports",
        "NCCL does not mix them: see 'ibstat', 'mlxconfig' there",
    ),
    (
        "names",
        "device",
        "names of InfiniBand devices",
        "NCCL_IB_HCA names them: give one that fits all, or leave it out",
    ),
)
NETWORK = (
    Rule("link-mtu", "link.mtu", "equal", "link MTU", "set the same MTU on every host and on the switch", "warning"),
    Rule(
        "link-speed",
        "link.speed",
        "equal",
        "link speed (Mbit/s)",
        "the slowest link sets the pace: look at the cable and the switch port",
        "warning",
    ),
    Rule(
        "infiniband",
        "infiniband_ports",
        "equal",
        "active InfiniBand ports",
        "see ibstat there: a port that is down sends traffic over TCP, or nowhere",
        "warning",
    ),
    *(
        Rule(f"infiniband-{id}", f"infiniband.{name}", "equal", what, remedy, "warning", covered_by=("infiniband",))
        for id, name, what, remedy in INFINIBAND
    ),
    Rule(
        "nccl-sockets",
        sockets,
        "clear",
        "InfiniBand ports",
        "fine on Ethernet: NCCL sends over TCP sockets; with InfiniBand or RoCE cards it should not: see ibstat there",
        "info",
        covered_by=("infiniband",),
    ),
    Rule(
        "clock",
        "clock.skew",
        "maximum",
        "between its clock and the head's",
        "start a time service there (chrony, systemd-timesyncd)",
        levels=((1.0, "warning"),),
        unit="s",
    ),
)

RULES = (*SYSTEM, *ROOM, *ENVIRONMENT, *NETWORK)
