"""Holds the rules about GPUs, their driver, and the toolkit that compiles for them."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from fleet.rules.gpu_state import judged
from fleet.rules.rule import MISSING, Rule, View, lookup
from fleet.rules.units import counted

# NVIDIA's "minor version compatibility": the oldest Linux driver for a CUDA major version.
OLDEST_DRIVER = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}


def cuda_of(view: View) -> str:
    """Returns the CUDA version of the host's torch, "" for none."""
    cuda = lookup(view, "torch.cuda")
    return cuda if isinstance(cuda, str) else ""


def no_driver(view: View) -> str | None:
    """Returns the finding that GPUs are plugged in and have no driver; None if nvidia-smi lists a GPU. It also returns
    None if nvidia-smi hangs or fails, because then there is a driver."""
    plugged, cuda = view.get("pci_gpus"), cuda_of(view)
    if not plugged or not cuda or lookup(view, "driver") is not None or view.get("gpus") != []:
        return None
    return f"none, but {plugged} GPUs are plugged in and torch is built for CUDA {cuda}"


def too_few(view: View) -> str | None:
    found, want = view.get("gpus"), view["want"]
    if found is None or view.get("gpu_error") or no_driver(view):
        return None
    # `slots` is a number of ranks: on hosts without GPUs it requires none
    indexed = max(want.devices or (-1,)) + 1
    wanted = max(want.ranks or 0, indexed)
    has_some = found or view.get("pci_gpus") or indexed
    return f"{len(found)} usable, {wanted} needed" if has_some and len(found) < wanted else None


def ecc_errors(gpu: View) -> str | None:
    count = gpu.get("ecc_errors")
    return f"has {counted(count, 'uncorrected memory error')}" if count else None


def count(view: View) -> Any:
    """Returns a host's number of GPUs, which must be the same on all hosts. MISSING if the inventory sets the number,
    because hosts may differ then."""
    want = view["want"]
    return lookup(view, "gpu.count") if want.ranks is None and want.devices is None else MISSING


def some(view: View) -> Any:
    """Returns whether the host has a GPU, MISSING if that is not known."""
    unknown = view.get("gpus") is None or view.get("gpu_error") or no_driver(view)
    return MISSING if unknown else bool(view["gpus"])


def old_driver(view: View) -> str | None:
    driver, cuda = view.get("driver"), cuda_of(view)
    oldest = OLDEST_DRIVER.get(cuda.split(".")[0])
    too_old = driver and oldest and numbers(driver) < numbers(oldest)
    return f"{driver}, CUDA {cuda} of its torch needs {oldest} or newer" if too_old else None


def numbers(version: str) -> tuple[int, ...]:
    """Returns (525, 60, 13) for "525.60.13", to compare versions."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


RULES = (
    Rule(
        "arch",
        "arch",
        "equal",
        "architecture",
        "launch on hosts of one architecture: narrow the selection with -w or -x",
    ),
    Rule(
        "gpu-driver-missing",
        no_driver,
        "clear",
        "the NVIDIA driver",
        "install the NVIDIA driver that the other hosts have, then reboot or load the module",
    ),
    Rule(
        "gpu-unusable",
        "gpu_error",
        "clear",
        "nvidia-smi",
        "a driver/library version mismatch goes away with a reboot; for the rest see 'dmesg | grep -i xid'",
    ),
    Rule(
        "gpu-none",
        some,
        "partly",
        "no GPU is there, elsewhere there are some",
        "ranks of one run are alike: leave those hosts out with -x, or the others",
        "warning",
        run=True,
        covered_by=("gpu-slots",),
    ),
    Rule(
        "gpu-slots",
        too_few,
        "clear",
        "GPUs",
        "lower 'slots' of this host in the inventory, or look for the GPU that fell off the bus (nvidia-smi -L)",
    ),
    Rule(
        "gpu-count",
        count,
        "equal",
        "GPU count",
        "give each host its own 'slots' in the inventory; nvidia-smi -L shows what is there",
        "warning",
        covered_by=("gpu-lost",),
    ),
    Rule(
        "gpu-model",
        "gpu.model",
        "equal",
        "GPU model",
        "a step takes as long as on the slowest GPU: group equal hosts and select them with -w @group",
        "warning",
    ),
    Rule(
        "gpu-ecc",
        partial(judged, wrong=ecc_errors, spared=None, whole=True),
        "clear",
        "GPU memory errors",
        "reset it while nothing uses it, or replace it: uncorrected errors end a run or spoil its results",
        "warning",
        run=True,
    ),
    Rule(
        "gpu-memory",
        "gpu.memory",
        "equal",
        "GPU memory in GiB",
        "the smallest GPU limits the batch: group equal hosts and select them with -w @group",
        "warning",
        covered_by=("gpu-model",),
    ),
    Rule("driver-version", "driver", "equal", "NVIDIA driver", "install the same driver on every host", "warning"),
    Rule(
        "driver-old",
        old_driver,
        "clear",
        "NVIDIA driver",
        "update the driver, or install a torch built for an older CUDA",
        "warning",
    ),
    Rule(
        "cuda-toolkit",
        "cuda_toolkit",
        "equal",
        "CUDA toolkit",
        "needed only to compile ops: build wheels on one host, or install the same toolkit",
        "warning",
    ),
    Rule(
        "nccl-library",
        "nccl_library",
        "equal",
        "system NCCL",
        "torch from a wheel brings its own; else install the same libnccl on every host",
        "warning",
    ),
)
