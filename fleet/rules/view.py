"""Prepares a host's facts for the rules: what its node reported, and facts derived from that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet.protocol.steps import own_seconds
from fleet.rules.rule import MISSING, GiB, View, Want

NOTABLE = ("accelerate", "transformers", "numpy")
# steps that wait for the activate line: if that line hangs, the timeouts of these steps are consequences
AFTER_ACTIVATE = (
    "python",
    "compilers",
    "nccl",
    "gpus",
    "gpu processes",
    "gpu health",
    "nvlinks",
    "builds",
    "environment",
    "network",
    "imports",
    "container",
)
AFTER_PYTHON = ("imports",)
AFTER_GPUS = ("gpu health", "nvlinks")
GIB_STEP = 4  # GPU memory is rounded to so many GiB: drivers keep different amounts for themselves


def view(facts: View, want: Want = Want()) -> View:
    """Returns a host's facts, as `check` or a launch's preflight collected them, with derived facts added. The key
    "want" of the result describes what the run needs of the host."""
    late = facts.get("timed_out") or ()
    before = {"activate": AFTER_ACTIVATE, "python": AFTER_PYTHON, "gpus": AFTER_GPUS}
    after = [step for each in late for step in before.get(each, ())]
    seconds = {**dict.fromkeys(late, want.deadline), **own_seconds(want.deadline)}
    used = (facts.get("network") or {}).get("interface") or facts.get("head_interface")  # or that of ssh
    links = [i for i in facts.get("interfaces") or () if i["name"] == str(used).partition(":")[0]]
    result = {
        **facts,
        "want": want,
        "hangs": {step: f"did not answer within {seconds[step]:g} s" for step in late if step not in after},
        "link": {name: value for name, value in links[0].items() if value is not None} if links else {},
    }
    if (ports := facts.get("infiniband")) is not None:
        active = [port for port in ports if port.get("state") == "ACTIVE"]
        result["infiniband_ports"] = len(active)
        result["infiniband"] = {name: _of_all(active, name) for name in ("device", "rate", "link_layer")}
        counted = [f"{port['device']} port {port['port']}: {port['errors']}" for port in ports if port.get("errors")]
        result["infiniband_errors"] = "; ".join(counted) or None
    if result.get("python") is not None:
        _python(result)
    if (found := result.get("gpus")) is not None:
        mig = " (MIG)" * (bool(found) and all(gpu.get("mig") for gpu in found))
        models = sorted({gpu.get("name") or "?" for gpu in found})
        sizes = sorted({GIB_STEP * round(gpu["memory"] / GIB_STEP / GiB) for gpu in found if gpu.get("memory")})
        model = ", ".join(models) + mig or None
        result["gpu"] = {"count": len(found), "model": model, "memory": ", ".join(map(str, sizes)) or MISSING}
        if found and not result.get("driver"):
            result["driver"] = found[0].get("driver")
    elif result.get("driver") is None:
        result.pop("driver", None)  # nvidia-smi hangs in the driver, or cannot reach it
    if clock := result.get("clock"):
        result["clock"] = {**clock, "skew": max(0.0, abs(clock["offset"]) - clock["uncertainty"])}
    result["several_ranks"] = (want.ranks or result.get("gpu", {}).get("count") or 1) > 1
    return result


def _of_all(ports: Sequence[View], name: str) -> Any:
    values = [port.get(name) for port in ports]
    return MISSING if None in values else ", ".join(sorted({str(value) for value in values})) or None


def _python(view: dict[str, Any]) -> None:
    python = view["python"]
    view["python_error"] = python.get("error")
    if not python.get("version"):
        for name in ("torch", "deepspeed", "packages", "python"):
            view.pop(name, None)
        return
    view["python_minor"] = ".".join(python["version"].split(".")[:2])
    packages = view["packages"] = {name: str(version) for name, version in (view.get("packages") or {}).items()}
    view["versions"] = {name: packages.get(name) for name in NOTABLE}
    if torch := view.get("torch"):
        view["torch_build"] = (
            f"CUDA {torch['cuda']}" if torch.get("cuda") else f"ROCm {torch['hip']}" if torch.get("hip") else "CPU"
        )
        view["torch_nccl"] = torch.get("nccl")
    if view.get("deepspeed"):
        view["deepspeed_ops"] = ", ".join(view["deepspeed"].get("ops") or []) or "none"
