"""Holds the rules for one host, without regard to other hosts: what the engine, its torch and its GPUs need, and what
spoils a run there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.errors import Reason
from fleet.rules.compilers import FIRST_CUDA, LAST_CUDA, capability, numbers, wrong_compilers, wrong_toolkit
from fleet.rules.devices import cuda_of
from fleet.rules.rule import GiB, MiB, Rule, Sentence, View, lookup
from fleet.rules.units import size

BUILDING = ("deepspeed", "colossalai")  # they compile ops when a script first uses them
TOOLKIT = "point CUDA_HOME in 'env' at the CUDA toolkit that its torch is built for, or install that one"


def capabilities(view: View) -> dict[str, str]:
    """Returns compute capability -> the name of a GPU there that has it. GPUs with unknown names are left out."""
    names = [str(gpu.get("name")) for gpu in view.get("gpus") or ()]
    return {known: name for name in names if (known := capability(name))}


def toolchain(view: View) -> Sentence | None:
    building = [name for name in BUILDING if name in view["want"].modules]
    if not building or building == ["deepspeed"] and lookup(view, "deepspeed.ops"):
        return None
    torch, kit = view.get("torch") or {}, _tool(view, "cuda_toolkit")
    tools = {"cc": _tool(view, "compilers.gcc"), "cxx": _tool(view, "compilers.g++")}
    wrong = list(wrong_compilers(tools, torch, (kit or {}).get("version")))
    if cuda_of(view):
        wrong += [(message, TOOLKIT) for message, _ in wrong_toolkit(tuple(capabilities(view)), torch, kit)]
    text = f"{building[0]} compiles ops there: {'; '.join(message for message, _ in wrong)}"
    return Sentence(Reason.of_node(text), wrong[0][1]) if wrong else None


def _tool(view: View, path: str) -> Mapping[str, Any] | None:
    """Returns a tool as node/python/toolchain.py describes it; None if it is absent. Its version is None if the host
    did not report it."""
    version = lookup(view, path)
    return None if version is None else {"version": version if isinstance(version, str) else None}


def no_kernels(view: View) -> str:
    cuda, wrong = numbers(cuda_of(view)), list[str]()
    for known, name in capabilities(view).items():
        # code for a GPU runs on later GPUs with the same major number
        alike = [first for one, first in FIRST_CUDA.items() if one.split(".")[0] == known.split(".")[0]]
        first, last = min(alike, default=(0, 0)), LAST_CUDA.get(known, (99, 0))
        if cuda and not first <= cuda <= last:
            bound = f"needs {first[0]}.{first[1]} or newer" if cuda < first else f"ended with {last[0]}.{last[1]}"
            wrong.append(f"built for CUDA {cuda[0]}.{cuda[1]}, {name} {bound}")
    return "; ".join(wrong)


def of_cpu(view: View) -> str | None:
    found = len(view.get("gpus") or ())
    cpu = view.get("torch_build") == "CPU" and "torch" in view["want"].modules
    return f"built for CPUs only, and {found} GPUs are there" if found and cpu else None


def shm_full(view: View) -> str | None:
    disk = lookup(view, "disks.shm")
    if not isinstance(disk, Mapping) or disk["free"] >= min(disk["total"] / 10, 256 * MiB) or disk["total"] < GiB:
        return None
    return f"{size(disk['free'])} of {size(disk['total'])} are free"


def shadows(view: View) -> Sentence | None:
    found = view.get("shadows") or {}
    names, text = ", ".join(found.get("files") or ()), "{folder} has {names}: scripts there import that instead"
    return Sentence(Reason(text, folder=found["folder"], names=names)) if names else None


RULES = (
    Rule("toolchain", toolchain, "clear", "compilers", "install them there", "warning", run=True),
    Rule(
        "gpu-kernels",
        no_kernels,
        "clear",
        "torch",
        "install a torch built for a CUDA that knows this GPU: https://pytorch.org/get-started/locally",
        "warning",
        run=True,
    ),
    Rule(
        "torch-cpu",
        of_cpu,
        "clear",
        "torch",
        "install a CUDA build of torch there; fine where it is to train on CPUs",
        "warning",
        run=True,
    ),
    Rule(
        "shm-full",
        shm_full,
        "clear",
        "/dev/shm",
        "'ls -lS /dev/shm' there shows what fills it; files whose processes have ended may go ('fuser -v' shows them)",
        "warning",
        run=True,
    ),
    Rule(
        "modules-hidden",
        shadows,
        "clear",
        "modules",
        "rename them: they hide modules of Python, or packages, of the same names",
        "warning",
        run=True,
    ),
    Rule(
        "data-changed",
        "data_changed",
        "contents",
        "data that was synced",
        "'fleet sync --data PATH' brings what is missing; is the disk that had it mounted there?",
        "warning",
        run=True,
        covered_by=("data-mixed",),
    ),
)
