"""A host's facts, made comparable: what the probe brought, and what follows from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet.rules.parity import OLDEST_DRIVER

View = Mapping[str, Any]
FEW = 4
NEEDED_STEPS = ("activate", "python")
NOTABLE = ("accelerate", "transformers", "numpy")
# steps that wait for the activate line: where that hangs, they say nothing of their own
BEHIND_ACTIVATE = ("python", "compilers", "nccl", "gpus", "gpu processes")


class Missing:
    """The type of MISSING: the probe could not tell. None means it could, and there is none."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


def lookup(view: View, path: str) -> Any:
    """The value at a dotted path; None below something absent, MISSING where nothing is known."""
    value: Any = view
    for name in path.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or name not in value:
            return MISSING
        value = value[name]
    return value


def view(
    facts: Mapping[str, Any],
    *,
    ranks: int | None = None,
    devices: Sequence[int] | None = None,
    modules: Sequence[str] = (),
    deadline: float = 20.0,
) -> View:
    """Facts of one host with the derived ones laid over them: of the probe of `check`, or of a launch's preflight.

    ranks: the inventory's `slots`, None where it does not say. devices: the GPU indexes that were selected, None for
    all. modules: what the interpreter must be able to import. deadline: seconds a probe step had.
    """
    result = dict(facts)
    timed_out = list(facts.get("timed_out") or [])
    if "activate" in timed_out:
        timed_out = [step for step in timed_out if step not in BEHIND_ACTIVATE]
    result["hangs"] = dict.fromkeys(timed_out, f"did not answer within {deadline:g} s")
    problems: dict[str, str | None] = {
        "activate": _after("it failed: ", facts.get("activate")),
        "failed": _broken(facts, lambda step: step not in NEEDED_STEPS),
        "broken": _broken(facts, lambda step: step in NEEDED_STEPS),
    }
    result["problems"] = problems
    _python(result, problems, modules)
    _gpus(result, problems, ranks, devices)
    _places(result, problems)
    result["several_ranks"] = (ranks or result.get("gpu", {}).get("count") or 1) > 1
    return result


def _broken(facts: View, which: Callable[[str], bool]) -> str | None:
    return "; ".join(f"{step}: {why}" for step, why in (facts.get("failed") or {}).items() if which(step)) or None


def _after(prefix: str, text: str | None) -> str | None:
    return prefix + text if text else None


def _python(view: dict[str, Any], problems: dict[str, str | None], modules: Sequence[str]) -> None:
    python = view.get("python")
    if python is None:
        return
    problems["python"] = python.get("error")
    if not python.get("version"):
        for name in ("torch", "deepspeed", "packages", "python"):
            view.pop(name, None)
        return
    view["python_minor"] = ".".join(python["version"].split(".")[:2])
    packages = view["packages"] = {name: str(version) for name, version in (view.get("packages") or {}).items()}
    view["versions"] = {name: packages.get(name) for name in NOTABLE}
    known = {
        **packages,
        **(view.get("modules") or {}),
        **{name: (view.get(name) or {}).get("version") for name in ("torch", "deepspeed") if name in view},
    }
    missing = [name for name in modules if not known.get(name)]
    problems["modules"] = (
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed for {python.get('path')}"
        if missing
        else None
    )
    torch = view.get("torch")
    if torch:
        view["torch_build"] = (
            f"CUDA {torch['cuda']}" if torch.get("cuda") else f"ROCm {torch['hip']}" if torch.get("hip") else "CPU"
        )
        view["torch_nccl"] = torch.get("nccl")
    if view.get("deepspeed"):
        view["deepspeed_ops"] = ", ".join(view["deepspeed"].get("ops") or []) or "none"


def _gpus(
    view: dict[str, Any], problems: dict[str, str | None], ranks: int | None, devices: Sequence[int] | None
) -> None:
    found = view.get("gpus")
    needed = max(devices or (-1,)) + 1
    cuda = lookup(view, "torch.cuda")
    cuda = cuda if isinstance(cuda, str) else None
    plugged = view.get("pci_gpus") or 0
    if found is not None:
        view["gpu"] = {"count": len(found), "model": ", ".join(sorted({g.get("name") or "?" for g in found})) or None}
        if found and not view.get("driver"):
            view["driver"] = found[0].get("driver")
        bad = [f"GPU {g['index']}: {g['ecc_errors']}" for g in found if g.get("ecc_errors")]
        problems["ecc"] = _after("uncorrected memory errors, ", ", ".join(bad))
        # slots are ranks: on CPU-only hosts they say nothing about GPUs
        wanted = max(ranks or 0, needed)
        if (found or plugged or needed) and len(found) < wanted and not view.get("gpu_error"):
            problems["slots"] = f"{len(found)} usable, {wanted} needed"
    if plugged and cuda and not view.get("driver"):
        problems["driverless"] = f"none, but {plugged} GPUs are plugged in and torch is built for CUDA {cuda}"
        problems["slots"] = None
    others = {gpu.get("uuid") for gpu in found or () if devices is not None and gpu["index"] not in devices}
    busy = [process for process in view.get("gpu_processes") or () if process.get("gpu") not in others]
    problems["busy"] = (
        ", ".join(dict.fromkeys(map(_who, busy[:FEW]))) + (f" and {len(busy) - FEW} more" if len(busy) > FEW else "")
        or None
    )
    oldest = OLDEST_DRIVER.get((cuda or "").split(".")[0])
    driver = view.get("driver")
    if driver and oldest and numbers(driver) < numbers(oldest):
        problems["old_driver"] = f"{driver}, CUDA {cuda} of its torch needs {oldest} or newer"


def _who(process: View) -> str:
    """A process that computes on a GPU: its run or its command where that is known."""
    name = f"run {process['run_id']}" if process.get("run_id") else process.get("command")
    return f"{name} (pid {process['pid']})" if name else f"pid {process['pid']}"


def _places(view: dict[str, Any], problems: dict[str, str | None]) -> None:
    workdir = lookup(view, "disks.workdir")
    if isinstance(workdir, Mapping) and not workdir["writable"]:
        problems["workdir"] = f"{workdir['path']} is not writable for {view.get('user', 'this user')}"
    if "rsync" in view and not view["rsync"]:
        problems["rsync"] = "not installed"
    link = [i for i in view.get("interfaces") or [] if i["name"] == view.get("head_interface")]
    view["link"] = link[0] if link else {}
    view["infiniband_ports"] = len([p for p in view.get("infiniband") or [] if p["state"] == "ACTIVE"])
    clock = view.get("clock")
    if clock:
        view["clock"] = {**clock, "skew": max(0.0, abs(clock["offset"]) - clock["uncertainty"])}


def numbers(version: str) -> tuple[int, ...]:
    """ "525.60.13" as (525, 60, 13), to compare versions."""
    return tuple(int(part) for part in re.findall(r"\d+", version))
