"""The facts of a node, for check and for launch's preflight. A fact is its value; null where there is none; missing
where it is not known."""

import ipaddress
from typing import Annotated, TypedDict

from fleet.protocol.messages.run import LiveRun, RunId


def _of_an_interface(text: str) -> bool:
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return True


Text = str | None
Number = int | None
# who has the port that is wanted
Holder = TypedDict("Holder", {"pid": Number, "command": Text, "run_id": RunId | None}, total=False)
# from this node to the master of a run, and whether its port is to be had
Way = TypedDict(
    "Way",
    {
        "master": Text,
        "address": Text,
        "interface": Text,
        "error": Text,
        "hint": Text,
        "ok": bool,
        "holder": Holder | None,
    },
    total=False,
)
Cpu = TypedDict("Cpu", {"model": Text, "count": Number, "usable": Number}, total=False)
Python = TypedDict(
    "Python", {"path": Text, "executable": Text, "version": Text, "implementation": Text, "error": Text}, total=False
)
# torch: its version. cuda: what torch is built for
Interpreter = TypedDict("Interpreter", {"path": str, "version": str, "torch": Text, "cuda": Text})
DeepSpeed = TypedDict("DeepSpeed", {"version": Text, "ops": list[str]}, total=False)
# "10.0.0.5/24"
OwnAddress = Annotated[str, _of_an_interface]
Interface = TypedDict(
    "Interface", {"name": str, "addresses": list[OwnAddress], "state": Text, "speed": Number, "mtu": Number}
)
_Gpu = TypedDict(
    "_Gpu", {"index": int, "name": str, "memory": Number, "uuid": Text, "driver": Text, "ecc_errors": Number}
)


class Gpu(_Gpu, total=False):
    """used: bytes of its memory. mode: who may compute on it. slowed: the bits of why its clocks are low."""

    reset: bool
    used: int
    mode: str
    mig: bool
    slowed: int


_GpuProcess = TypedDict("_GpuProcess", {"pid": int, "gpu": Text})


class GpuProcess(_GpuProcess, total=False):
    command: Text
    run_id: RunId | None


_Disk = TypedDict("_Disk", {"path": str, "exists": bool, "writable": bool, "free": int, "total": int})


class Disk(_Disk, total=False):
    inodes: Number


# of the node against the head, worked out by the head
Clock = TypedDict("Clock", {"offset": float, "uncertainty": float})
Script = TypedDict("Script", {"path": str, "exists": bool, "sha256": Text, "executable": bool})
# what a code sync left in the folder; half: its files are old and new mixed. busy: who syncs there now
_Code = TypedDict("_Code", {"folder": str, "state": str, "digest": Text, "half": bool, "busy": Text})


class Code(_Code, total=False):
    """changed: modules that are not as they were delivered -> which content they have."""

    changed: dict[str, str]


Data = TypedDict("Data", {"folder": str, "busy": Text})
# modules of a folder that hide those of Python, or of packages, by their file names
Shadows = TypedDict("Shadows", {"folder": str, "files": list[str]})
# the lock of an extension that torch builds
Build = TypedDict("Build", {"path": str, "sure": bool})
# of a run that nobody keeps any more. ended: just now. left: the processes that would not die, in words
Remains = TypedDict("Remains", {"run": RunId, "ended": bool, "left": list[str]})
# of RunHere
Facts = TypedDict(
    "Facts",
    {
        "timed_out": list[str],
        "failed": dict[str, str],
        "activate": Text,
        "hostname": Text,
        "user": Text,
        "boot_id": Text,
        "os": Text,
        "kernel": Text,
        "arch": Text,
        "glibc": Text,
        "driver": Text,
        "transparent_hugepages": Text,
        "cuda_toolkit": Text,
        "nccl_library": Text,
        "gpu_error": Text,
        "head_interface": Text,
        "numa_nodes": Number,
        "pci_gpus": Number,
        "driver_gpus": Number,
        "seconds": float | None,
        "cpu": Cpu,
        "memory": dict[str, Number],
        "limits": dict[str, int | str],
        "compilers": dict[str, Text],
        "python": Python,
        "interpreters": list[Interpreter],
        "packages": dict[str, str],
        "torch": dict[str, Text] | None,
        "deepspeed": DeepSpeed | None,
        "interfaces": list[Interface],
        "infiniband": list[dict[str, Text]],  # of each port: its device, state, rate, link_layer
        "gpus": list[Gpu],
        "gpu_processes": list[GpuProcess],
        "disks": dict[str, Disk],
        "clock": Clock,
        "script": Script | None,
        "configs_missing": list[str],
        "script_folder": str,  # where it is one
        "no_runs": Text,  # what is in the way of folders for runs
        "code": Code | None,
        "data": Data | None,
        "data_changed": dict[str, str],  # as Code's changed, of data that was delivered
        "shadows": Shadows,
        "builds": list[Build],
        "remains": list[Remains],
        "runs": list[LiveRun],
        "network": Way | None,
        "port": Way | None,
        "unread": Text,
        "environment": dict[str, str],
        "unreached": dict[str, int],
        "visible": Number,
        "deaf": str,
        "imports": dict[str, str],
        "unreadable": list[str],
    },
    total=False,
)
# a node's answer to {"op": "clock"}, at any time, and its facts in the end
Probed = TypedDict("Probed", {"clock": float, "facts": Facts}, total=False)
# of node/preflight/reach.py: whether others may come now; then the visits that arrived, by their id
Listening = TypedDict("Listening", {"listening": bool})
Reached = TypedDict("Reached", {"reached": dict[str, bool], "error": Text})
