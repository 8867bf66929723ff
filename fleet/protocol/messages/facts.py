"""Defines the facts of a node, for check and for launch's preflight. A fact is its value; null if the thing is absent;
missing if it is not known."""

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
# the process that has the requested port
Holder = TypedDict("Holder", {"pid": Number, "command": Text, "run_id": RunId | None}, total=False)
# silent: no answer. stalled: it answers, but does not receive the data. other: another program answers
How = Literal["open", "refused", "unreachable", "silent", "stalled", "other", "unknown"]
# bytes that arrived in these seconds; rtt: s; mtu: of the path; again: segments that were sent twice; busy: the
# sender's processor was the limit
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
# a link of `check --network`, in Mbit/s and ms. least: it may be faster, the sender's processor was the limit
Link = TypedDict("Link", {"mbit": float, "rtt_ms": float, "mtu": int, "again": int, "least": bool})
# of `check --bench`, for a GPU or all cores: the rates of a matrix product and of a copy of memory, or the error
Rate = Annotated[float, lambda rate: 0 < rate < 1e9]
_Error = TypedDict("_Error", {"error": str})
_Rates = TypedDict("_Rates", {"tflops": Rate, "gbytes": Rate})
Speed = _Rates | _Error
Reduced = TypedDict("Reduced", {"bytes": Count, "seconds": Rate})  # of `check --network`'s all-reduce
# the route from this node to the master of a run, and whether its port can be used
Way = TypedDict(
    "Way",
    {
        "master": Text,
        "address": Text,
        "interface": Text,
        "advertised": Address | None,  # the address that gloo and NCCL take by the interface's name
        "nccl": Text,  # that name as NCCL reads it
        "replaced": dict[str, str],  # variables of the node that name another interface
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
    """Holds what is known of a GPU; other fields are missing. reset: it requires a reset. minor: number of its device
    file."""

    reset: bool
    minor: Count


_NvLinks = TypedDict("_NvLinks", {"gpu": int, "active": Count})


class NvLinks(_NvLinks, total=False):
    """Counts the active links of a GPU, and their errors if they are known."""

    replay: Count
    recovery: Count
    crc: Count


# ago: seconds since the last such error; text: its line in the kernel's log
Xid = TypedDict("Xid", {"bus": str, "xid": int, "count": Count, "ago": float, "text": str})
_GpuProcess = TypedDict("_GpuProcess", {"pid": int, "gpu": Text})


class GpuProcess(_GpuProcess, total=False):
    command: Text
    run_id: RunId | None


_Disk = TypedDict("_Disk", {"path": str, "exists": bool, "writable": bool, "free": int, "total": int})


class Disk(_Disk, total=False):
    inodes: Number


# the node's clock relative to the head's; the head computes it
Clock = TypedDict("Clock", {"offset": float, "uncertainty": float})
Script = TypedDict("Script", {"path": str, "exists": bool, "sha256": Text, "executable": bool})
# what a code sync left in the folder. half: old and new files are mixed. busy: who syncs there now
_Code = TypedDict("_Code", {"folder": str, "state": str, "digest": Text, "half": bool, "busy": Text})


class Code(_Code, total=False):
    """Describes the synced code in a folder. changed: modules that differ from the delivered ones -> which content they
    have. manifest: digest of the last delivery, from `source`. script: the source of the script, if it is unchanged."""

    changed: dict[str, str]
    manifest: Text
    source: Source | None
    script: Source | None
    file: Source | None


_Container = TypedDict("_Container", {"runtime": Text, "image": str})


class Container(_Container, total=False):
    """Describes the runtime that has an image, or could have it; null if there is none. id: the image's, null if the
    image is missing; without `id` it is not known, and `why` has the reason. of: what the id is the sha256 of, unless
    of the configuration."""

    path: str
    id: Sha256 | None
    of: Literal["manifest"]
    why: str


Data = TypedDict("Data", {"folder": str, "busy": Text})
# modules of a folder that hide modules of Python, or packages, with the same names
Shadows = TypedDict("Shadows", {"folder": str, "files": list[str]})
# the lock of an extension that torch builds
Build = TypedDict("Build", {"path": str, "sure": bool})
# of a run without a supervisor. ended: ended just now. left: the processes that survived SIGKILL, as text
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
        "fabric_manager": bool,  # if there are NVSwitches
        "xids": list[Xid],
        "disks": dict[str, Disk],
        "clock": Clock,
        "script": Script | None,
        "configs_missing": list[str],
        "script_folder": str,  # if it is one
        "no_runs": Text,  # the path that keeps folders of runs from being made
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
        "before": list[Any],  # the head's records of the host (null) and of its GPUs, by their index "gpu"
        "pairs": dict[str, How],  # other host -> result of connecting to it
        "visible": Number,
        "deaf": str,
        "imports": dict[str, str],
        "container": Container,
        "unreadable": list[str],
    },
    total=False,
)
# a node's response to {"op": "clock"}, at any time, and its facts at the end
Probed = TypedDict("Probed", {"clock": float, "facts": Facts}, total=False)
# of node/preflight/pairs.py: the port at each address, null if listening failed, and the error; then the result of each
# visit, and its measurements if it was open and sent for a time
Listening = TypedDict("Listening", {"addresses": list[Address], "ports": list[Port | None], "error": Text})
Reached = TypedDict("Reached", {"reached": list[How], "links": list[Measured | None]})
# of node/preflight/bench.py: the port at which the ranks of a measurement meet; how its program ended
FreePort = TypedDict("FreePort", {"port": Port})
Benched = TypedDict("Benched", {"status": Number, "out": str, "why": str})
