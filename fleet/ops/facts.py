"""What the facts of a node are made of, as fleet/remote/probe.py and preflight.py tell them."""

from __future__ import annotations

from typing import Any

from fleet.ops.shape import Known, fits
from fleet.transport.frames import Nonsense

TEXT, COUNT, NUMBER = (str, None), (int, None), (int, float, None)
_WAY = Known(
    {
        **dict.fromkeys(("master", "address", "interface", "error", "hint"), TEXT),
        "ok": bool,
        "holder": (Known({"pid": COUNT, "command": TEXT, "run_id": TEXT}), None),
    }
)
FACTS = Known(
    {
        **dict.fromkeys(
            (
                "activate",
                "hostname",
                "user",
                "boot_id",
                "os",
                "kernel",
                "arch",
                "glibc",
                "driver",
                "rsync",
                "transparent_hugepages",
                "cuda_toolkit",
                "nccl_library",
                "gpu_error",
                "head_interface",
            ),
            TEXT,
        ),
        "timed_out": [str],
        "failed": {str: str},
        "numa_nodes": COUNT,
        "pci_gpus": COUNT,
        "cpus": COUNT,
        "time": NUMBER,
        "seconds": NUMBER,
        "cpu": Known({"model": TEXT, "count": COUNT, "usable": COUNT}),
        "memory": {str: COUNT},
        "limits": {str: (int, str)},
        "compilers": {str: TEXT},
        "python": Known(dict.fromkeys(("path", "executable", "version", "implementation", "error"), TEXT)),
        "packages": {str: str},
        "modules": {str: TEXT},
        "torch": ({str: TEXT}, None),
        "deepspeed": (Known({"version": TEXT, "ops": [str]}), None),
        "interfaces": [{"name": str, "addresses": [str], "state": TEXT, "speed": COUNT, "mtu": COUNT}],
        "infiniband": [{"state": str}],
        "gpus": [{"index": int, "name": str, "memory": COUNT, "uuid": TEXT, "driver": TEXT, "ecc_errors": COUNT}],
        "gpu_processes": [{"pid": int, "gpu": TEXT}],
        "disks": {str: {"path": str, "exists": bool, "writable": bool, "free": int, "total": int}},
        "clock": {"offset": (int, float), "uncertainty": (int, float)},
        "workdir": ({"path": str, "exists": bool}, None),
        "script": ({"path": str, "exists": bool, "sha256": TEXT, "executable": bool}, None),
        "code": ({"folder": str, "state": str, "digest": TEXT, "half": bool, "busy": TEXT}, None),
        "builds": [{"path": str, "sure": bool}],
        "network": (_WAY, None),
        "port": (_WAY, None),
    }
)


def checked(facts: Any, host: str) -> dict[str, Any]:
    """A node's facts as they are; Nonsense when one of them is of another kind than it must be."""
    if not fits(facts, FACTS):
        wrong = [key for key in FACTS if not isinstance(facts, dict) or not fits(facts, Known({key: FACTS[key]}))]
        raise Nonsense(f"facts that make no sense ({', '.join(wrong[:3])})", host)
    return dict(facts)
