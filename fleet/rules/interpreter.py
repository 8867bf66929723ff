"""The training interpreter and what is in it."""

from __future__ import annotations

from typing import Any

from fleet.rules.rule import MISSING, Rule, View, lookup
from fleet.rules.view import NOTABLE

SAME_WHEEL = "install the same version into every host's training interpreter"


def activate(view: View) -> str | None:
    return f"it failed: {view['activate']}" if view.get("activate") else None


def missing_modules(view: View) -> Any:
    if "versions" not in view:
        return MISSING
    known = {
        **view["packages"],
        **{name: (view.get(name) or {}).get("version") for name in ("torch", "deepspeed") if name in view},
    }
    missing = [name for name in view["want"].modules if not known.get(name)]
    are = "is" if len(missing) == 1 else "are"
    return f"{' and '.join(missing)} {are} not installed for {lookup(view, 'python.path')}" if missing else None


def other_packages(view: View) -> Any:
    """Those that no rule of their own looks at."""
    own = {"torch", "deepspeed", *NOTABLE}
    return {name: version for name, version in (view.get("packages") or {}).items() if name not in own} or MISSING


RULES = (
    Rule(
        "activate",
        activate,
        "clear",
        "the activate line",
        "run the inventory's 'activate' line by hand there: ssh HOST, then bash",
    ),
    Rule(
        "python-missing",
        "python_error",
        "clear",
        "the training interpreter",
        "install it there, or correct 'python' (or 'activate') of this host in the inventory",
        needs="python",
    ),
    Rule(
        "module-missing",
        missing_modules,
        "clear",
        "needed for a run",
        "install it there: fleet sync --wheels requirements.txt; or set 'python' to the interpreter that has it",
    ),
    Rule(
        "python-version",
        "python_minor",
        "equal",
        "Python",
        "give all hosts the same minor version: wheels and pickles do not cross it; set 'python' in the inventory",
        needs="python",
    ),
    Rule(
        "python-patch",
        "python.version",
        "equal",
        "Python",
        "the same patch release everywhere rules out one more difference",
        "info",
        covered_by="python-version",
    ),
    Rule("torch-version", "torch.version", "equal", "torch", SAME_WHEEL, needs="torch"),
    Rule(
        "torch-build",
        "torch_build",
        "equal",
        "torch build",
        "install torch from the same index (cu121, cpu, ...) on every host",
        needs="torch",
    ),
    Rule(
        "torch-nccl",
        "torch_nccl",
        "equal",
        "torch's NCCL",
        "reinstall torch: its nvidia-nccl package must be the one it was released with",
        "warning",
    ),
    Rule(
        "torch-absent",
        "torch.version",
        "somewhere",
        "torch",
        "fine if none is meant to run here; else install it, or point 'python' at its interpreter",
        "info",
        covered_by="module-missing",
    ),
    Rule("deepspeed-version", "deepspeed.version", "equal", "deepspeed", SAME_WHEEL, needs="deepspeed"),
    Rule(
        "deepspeed-ops",
        "deepspeed_ops",
        "equal",
        "deepspeed with the compiled ops",
        "build one wheel and install it everywhere; a missing op is compiled at the first step, on that host alone",
        "warning",
    ),
    *(Rule(f"{name}-version", f"versions.{name}", "equal", name, SAME_WHEEL, "warning") for name in NOTABLE),
    Rule(
        "packages",
        other_packages,
        "contents",
        "other packages",
        "install from one lock file on every host; --json lists all versions",
        "info",
    ),
)
