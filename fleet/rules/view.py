"""A host's facts, made comparable: what its node told, and what follows from it."""

from __future__ import annotations

from typing import Any

from fleet.protocol.steps import OWN_SECONDS
from fleet.rules.rule import View, Want

NOTABLE = ("accelerate", "transformers", "numpy")
# steps that wait for the activate line: where that hangs, they say nothing of their own
BEHIND_ACTIVATE = ("python", "compilers", "nccl", "gpus", "gpu processes", "builds", "environment", "imports")
BEHIND_PYTHON = ("imports",)


def view(facts: View, want: Want = Want()) -> View:
    """Facts of one host, of `check` or of a launch's preflight, with the derived ones laid over them; "want" is what is
    wanted of it."""
    late = facts.get("timed_out") or ()
    behind = BEHIND_ACTIVATE if "activate" in late else BEHIND_PYTHON if "python" in late else ()
    seconds = {**dict.fromkeys(late, want.deadline), **OWN_SECONDS}
    links = [i for i in facts.get("interfaces") or () if i["name"] == facts.get("head_interface")]
    result = {
        **facts,
        "want": want,
        "hangs": {step: f"did not answer within {seconds[step]:g} s" for step in late if step not in behind},
        "link": links[0] if links else {},
        "infiniband_ports": sum(port["state"] == "ACTIVE" for port in facts.get("infiniband") or ()),
    }
    if result.get("python") is not None:
        _python(result)
    if (found := result.get("gpus")) is not None:
        models = sorted({gpu.get("name") or "?" for gpu in found})
        result["gpu"] = {"count": len(found), "model": ", ".join(models) or None}
        if found and not result.get("driver"):
            result["driver"] = found[0].get("driver")
    if clock := result.get("clock"):
        result["clock"] = {**clock, "skew": max(0.0, abs(clock["offset"]) - clock["uncertainty"])}
    result["several_ranks"] = (want.ranks or result.get("gpu", {}).get("count") or 1) > 1
    return result


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
