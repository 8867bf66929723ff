"""Reads facts about the system, the hardware, limits and disks, from /proc and /sys."""

import glob
import os
import platform
import pwd
import re
import resource
import socket

from fleet.node.base.files import filesystem, nearest_folder, no_room_for
from fleet.node.base.processes import read_file
from fleet.node.base.run_folder import runs_root
from fleet.node.base.types import Any
from fleet.protocol.state import below_home


def text(path: str) -> str:
    return read_file(path).decode("utf-8", "replace")


def find(pattern: str, string: str) -> "str | None":
    """Returns the first group of the pattern's first match in any line. Returns None without a match."""
    found = re.search(pattern, string, re.M)
    return found.group(1).strip() if found else None


def system() -> "dict[str, Any]":
    try:
        glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace("glibc ", "") or None
    except (ValueError, OSError):
        glibc = None  # another C library
    return {
        "hostname": socket.gethostname(),
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "boot_id": text("/proc/sys/kernel/random/boot_id").strip() or None,
        "os": find(r'^PRETTY_NAME="?([^"\n]*)', text("/etc/os-release")),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "glibc": glibc,
        "transparent_hugepages": find(r"\[(\w+)\]", text("/sys/kernel/mm/transparent_hugepage/enabled")),
        "numa_nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")) or None,
    }


def hardware() -> "dict[str, Any]":
    memory = {k: int(v) * 1024 for k, v in re.findall(r"^(\w+):\s+(\d+) kB", text("/proc/meminfo"), re.M)}
    swap = memory.get("SwapTotal", 0)
    return {
        "cpu": {
            "model": find(r"^model name\s*:(.*)$", text("/proc/cpuinfo")),
            "count": os.cpu_count(),
            "usable": len(os.sched_getaffinity(0)),
        },
        "memory": {
            "total": memory.get("MemTotal"),
            "available": memory.get("MemAvailable"),
            "swap_total": swap,
            "swap_used": swap - memory.get("SwapFree", 0),
        },
        # NVIDIA's GPUs on the PCI bus, including those that the driver does not know
        "pci_gpus": len(
            [
                d
                for d in glob.glob("/sys/bus/pci/devices/*")
                if text(d + "/vendor").strip() == "0x10de" and text(d + "/class").startswith("0x03")
            ]
        ),
    }


def limits() -> "dict[str, Any]":
    """Returns the soft limits of this SSH session. A run that the session starts inherits these limits."""
    limits = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK, "nproc": resource.RLIMIT_NPROC}
    soft = {name: resource.getrlimit(which)[0] for name, which in limits.items()}
    return {"limits": {name: "unlimited" if value == resource.RLIM_INFINITY else value for name, value in soft.items()}}


def disk(name: str, path: str) -> "dict[str, Any]":
    """Returns the facts of the disk at path. If path does not exist, they are those of the nearest parent folder that
    does. name: the disk's key in the facts."""
    path = os.path.abspath(os.path.expanduser(path))
    there = nearest_folder(path)
    stat = os.statvfs(there)
    kind, source = filesystem(os.path.realpath(there), text("/proc/self/mounts"))
    return {
        "disks": {
            name: {
                "path": path,
                "exists": there == path,
                "writable": os.access(there, os.W_OK | os.X_OK),
                "free": stat.f_bavail * stat.f_frsize,
                "total": stat.f_blocks * stat.f_frsize,
                "inodes": stat.f_favail if stat.f_files else None,  # None: the file system makes as many as needed
                "type": kind,
                "source": source,
            }
        }
    }


def own_disk() -> "dict[str, Any]":
    """Returns the facts of ~/.fleet's disk, if it is not the home's disk. Also returns "no_runs": the path that
    prevents fleet from making folders of runs, or None."""
    home, own = os.path.expanduser("~"), below_home()
    apart = os.path.isdir(own) and os.stat(own).st_dev != os.stat(home).st_dev
    return dict(disk("fleet", own) if apart else {}, no_runs=no_room_for(runs_root()))
