"""Decides which findings of health a check was able to make. An earlier finding that the check was not able to judge
again does not count as gone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fleet.protocol.gpu_fields import GPU_FIELDS
from fleet.rules import bench, devices, gpu_health, gpu_state, links
from fleet.rules.rule import MISSING, View

# rules about use, modes and models, which do not concern the health of a GPU
OF_USE = {
    *("gpu-busy", "gpu-held", "gpu-mig", "gpu-none", "gpu-slots"),
    *("gpu-count", "gpu-model", "gpu-memory", "gpu-persistence"),
}
RULES_OF_HEALTH = {
    rule.id: rule
    for rule in (*devices.RULES, *gpu_state.RULES, *gpu_health.RULES, *bench.RULES, *links.RULES)
    if rule.id.startswith(("gpu-", "bench-", "infiniband-", "ways-")) and rule.id not in OF_USE
}
PEERS = 3  # hosts with the fact; with fewer, a rule that compares hosts cannot find which one is worse
NO_DRIVER = ("gpus", "pci_gpus", "driver", "torch")
# rule about a host -> whether it was able to find something
OF_HOST: Mapping[str, Callable[[View], bool]] = {
    # without a torch for CUDA the rule finds nothing
    "gpu-driver-missing": lambda view: (
        bool(view.get("gpus"))
        or (all(name in view for name in NO_DRIVER) and bool(devices.cuda_of(view) or not view["pci_gpus"]))
    ),
    # without nvidia-smi the rule finds no error
    "gpu-unusable": lambda view: "gpu_error" in view and bool(view.get("gpus") or has_none(view)),
    "gpu-lost": lambda view: bool(view.get("gpus")) and "driver_gpus" in view,
    "gpu-fabric-manager": lambda view: "fabric_manager" in view,
    "infiniband-errors": lambda view: "infiniband" in view,
    "ways-slow": lambda view: True,
}
# rule about GPUs -> the fields of a GPU that must all be known
CELLS = {
    "gpu-drain": {"recovery"},
    "gpu-reset": {"reset"},
    "gpu-xid-minor": {"bus"},
    "gpu-pcie-widths": {"pcie_width"},
    "gpu-hot": {"temperature"},  # many GPUs do not report temperature_left
}
for _name, *_, _rule in GPU_FIELDS:
    if _rule != "gpu-hot":
        CELLS.setdefault(_rule, set()).add(_name)
NVLINKS = {
    "gpu-nvlink-down": {"active"},
    "gpu-nvlinks": {"active"},
    "gpu-nvlink-errors": {"recovery", "crc", "replay"},
}
# rule about GPUs -> whether a GPU is in the state that the rule judges
AT_WORK: Mapping[str, Callable[[View, View], bool]] = {
    "gpu-xid": lambda view, gpu: "xids" in view,
    "gpu-xid-minor": lambda view, gpu: "xids" in view,
    "gpu-clock": lambda view, gpu: gpu_health.shows_clock(gpu),
    "gpu-pcie-gen": lambda view, gpu: gpu.get("use", 0) > 0,
    "gpu-pcie-width": lambda view, gpu: gpu["index"] in gpu_health.lanes(view),
    "gpu-pcie-widths": lambda view, gpu: gpu["index"] in gpu_health.lanes(view),
}


def has_none(view: View) -> bool:
    """Returns whether it is known that a host has no NVIDIA GPU."""
    return view.get("pci_gpus") == 0 and view.get("driver_gpus") == 0


def is_whole(view: View) -> bool:
    """Returns whether all GPUs of a host are listed. A recorded GPU that is not in the list has then left the host."""
    found, most = view.get("gpus"), max(view.get("driver_gpus") or 0, view.get("pci_gpus") or 0)
    return found is not None and not view.get("gpu_error") and len(found) >= most > 0


def is_known(rule: str, views: Mapping[str, View], host: str, gpu: View | None) -> bool:
    """Returns whether the rule was able to find something about that GPU, or about the host itself if `gpu` is None.
    Returns False for a rule that this version of fleet does not have."""
    view = views[host]
    if rule not in RULES_OF_HEALTH:
        return False
    if rule.startswith("bench-"):
        indexes = [each["index"] for each in ([gpu] if gpu else view.get("gpus") or ())] or [None]
        return {(host, index) for index in indexes} <= bench.compared(rule, views)
    if RULES_OF_HEALTH[rule].kind != "clear":
        having = [name for name, each in views.items() if RULES_OF_HEALTH[rule].of(each) is not MISSING]
        if host not in having or len(having) < PEERS:
            return False
    if rule in OF_HOST:
        return OF_HOST[rule](view)
    if gpu is None:
        return is_whole(view) and all(is_seen(rule, view, each) for each in view["gpus"])
    return is_seen(rule, view, gpu)


def is_seen(rule: str, view: View, gpu: View) -> bool:
    """Returns whether all facts are known that the rule needs of a GPU."""
    if rule in NVLINKS:  # a GPU without an active link was not read
        read = {each["gpu"]: set(each) for each in view.get("nvlinks") or () if each["active"]}
        return NVLINKS[rule] <= read.get(gpu["index"], set())
    known = rule in CELLS and all(gpu.get(name) is not None for name in CELLS[rule])
    return known and (rule not in AT_WORK or AT_WORK[rule](view, gpu))
