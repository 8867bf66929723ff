"""The facts of a node, for check and for launch's preflight. A fact is its value; null where there is none; missing
where it is not known."""

import ipaddress
import re
from typing import Annotated, Any, Literal, TypedDict

from fleet.protocol.gpu_fields import BASE, GPU_FIELDS
from fleet.protocol.messages.code import Source
from fleet.protocol.messages.run import LiveRun, RunId
from fleet.protocol.messages.values import Count, Sha256


def _of_an_interface(text: str) -> bool:
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return True


def _is_an_address(text: str) -> bool:
    number, is_scoped, scope = text.partition("%")
    try:
        ipaddress.ip_address(number)
    except ValueError:
        return False
    return not is_scoped or re.fullmatch(r"[\w.-]{1,15}", scope, re.ASCII) is not None


Text = str | None
Address = Annotated[str, _is_an_address]
Port = Annotated[int, lambda port: 0 < port < 1 << 16]
Number = int | None
# who has the port that is wanted
Holder = TypedDict("Holder", {"pid": Number, "command": Text, "run_id": RunId | None}, total=False)
# silent: nothing answers. stalled: it does, and does not get what is sent. other: something else answers
How = Literal["open", "refused", "unreachable", "silent", "stalled", "other", "unknown"]
# bytes that arrived in these seconds; rtt: s; mtu: of the path; again: segments that were sent twice; busy: the sender
# had no processor for more
Measured = TypedDict(
    "Measured",
    {
        "bytes": Count,
        "seconds": Annotated[float, lambda seconds: 1e-6 <= seconds < 1e6],
        "rtt": Annotated[float, lambda seconds: 0 <= seconds < 1e6],
        "mtu": Count,
        "again": Count,
        "busy": bool,
    },
)
# a link as `check --network` has it: Mbit/s and ms; `least` where the sender's processor was the limit
Link = TypedDict("Link", {"mbit": float, "rtt_ms": float, "mtu": int, "again": int, "least": bool})
# of `check --bench`, of a GPU or of all cores: what a matrix product and a copy of memory reach, or why not
Rate = Annotated[float, lambda rate: 0 < rate < 1e9]
_Error = TypedDict("_Error", {"error": str})
_Rates = TypedDict("_Rates", {"tflops": Rate, "gbytes": Rate})
Speed = _Rates | _Error
Reduced = TypedDict("Reduced", {"bytes": Count, "seconds": Rate})  # of `check --network`'s all-reduce
# from this node to the master of a run, and whether its port is to be had
Way = TypedDict(
    "Way",
    {
        "master": Text,
        "address": Text,
        "interface": Text,
        "advertised": Address | None,  # which gloo and NCCL take, given the interface's name
        "nccl": Text,  # that name as NCCL reads it
        "replaced": dict[str, str],  # variables of the node's that name another interface
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
    "_Gpu", {"index": int, "name": Text, "memory": Number, "uuid": Text, "driver": Text, "ecc_errors": Number}
)


_CELLS: dict[str, Any] = {"text": str, "count": Count, "mib": Count, "number": float, "bits": Count, "flag": bool}
_State: Any = TypedDict("_State", {name: _CELLS[kind] for name, kind, *_ in GPU_FIELDS[BASE:]}, total=False)  # type: ignore[misc]


class Gpu(_Gpu, _State, total=False):
    """Holds what is known of a GPU; the rest is missing. reset: it requires one. minor: of its device file."""

    reset: bool
    minor: Count


_NvLinks = TypedDict("_NvLinks", {"gpu": int, "active": Count})


class NvLinks(_NvLinks, total=False):
    """Counts the active links of a GPU, and their errors where they are known."""

    replay: Count
    recovery: Count
    crc: Count


# the seconds since the last of these; text: that line of the kernel's log
Xid = TypedDict("Xid", {"bus": str, "xid": int, "count": Count, "ago": float, "text": str})
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
    """changed: modules that are not as they were delivered -> which content they have. manifest: the digest of what
    came last, from `source`; script: where the script came from, if it is as it came."""

    changed: dict[str, str]
    manifest: Text
    source: Source | None
    script: Source | None
    file: Source | None


_Container = TypedDict("_Container", {"runtime": Text, "image": str})


class Container(_Container, total=False):
    """The runtime that has an image, or could have it, null without one. id: the image's, null where it is missing; not
    there where it is not known, and why. of: what it is the sha256 of, if not of the configuration."""

    path: str
    id: Sha256 | None
    of: Literal["manifest"]
    why: str


Data = TypedDict("Data", {"folder": str, "busy": Text})
# modules of a folder that hide those of Python, or of packages, by their file names
Shadows = TypedDict("Shadows", {"folder": str, "files": list[str]})
# the lock of an extension that torch builds
Build = TypedDict("Build", {"path": str, "sure": bool})
# of a run without a supervisor. ended: just now. left: the processes that would not die, as text
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
        "nccl_conf": dict[str, str],
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
        "infiniband": list[dict[str, Text]],  # of each port: its device, state, rate, link_layer, errors
        "gpus": list[Gpu],
        "gpu_processes": list[GpuProcess],
        "nvlinks": list[NvLinks],
        "fabric_manager": bool,  # where there are NVSwitches
        "xids": list[Xid],
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
        "links": dict[str, Link],
        "speeds": list[Any],  # each a Speed, with its "gpu", null for the processors
        "before": list[Any],  # what the head kept of the host (null) and its GPUs, by their index "gpu"
        "pairs": dict[str, How],  # other host -> How, of those that this one dialled
        "visible": Number,
        "deaf": str,
        "imports": dict[str, str],
        "container": Container,
        "unreadable": list[str],
    },
    total=False,
)
# a node's answer to {"op": "clock"}, at any time, and its facts in the end
Probed = TypedDict("Probed", {"clock": float, "facts": Facts}, total=False)
# of node/preflight/pairs.py: the port at each address, null where it cannot be listened at, and why; then what came of
# the visits, and what was measured of those that are open, by their id
Listening = TypedDict("Listening", {"addresses": list[Address], "ports": list[Port | None], "error": Text})
Reached = TypedDict("Reached", {"reached": dict[str, How], "links": dict[str, Measured]})
# of node/preflight/bench.py: where the others of a measurement meet; how its program ended
FreePort = TypedDict("FreePort", {"port": Port})
Benched = TypedDict("Benched", {"status": Number, "out": str, "why": str})
