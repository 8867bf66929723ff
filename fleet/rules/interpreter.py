"""Holds the rules for the training interpreter and its packages."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from fleet.errors import Reason
from fleet.rules.rule import MISSING, Rule, Sentence, View, lookup
from fleet.rules.units import few
from fleet.rules.view import NOTABLE

SAME_WHEEL = "install the same version into every host's training interpreter"
CORRECT = "install it there, or correct 'python' (or 'activate') of this host in the inventory"
INSTALL = "install it there, named in FILE: fleet sync --wheels FILE; or set 'python' to the interpreter that has it"
REINSTALL = (
    "'fleet exec --env-of python -- python -c \"import torch\"' shows all of it: a library that is missing or "
    "another one (LD_LIBRARY_PATH), or a package to be installed again"
)
IN_IMAGE = "build it into the image and 'fleet sync --image IMAGE', or name another interpreter of it by --python"
LISTED = 4  # so many interpreters of a host are listed
PLAIN = re.compile(r"/[\w./+@-]+")  # YAML needs no quotes for such a path


def broken(view: View) -> Sentence | None:
    error = view.get("python_error")
    return with_others(view, Reason("the training interpreter: ") + Reason.of_node(error), CORRECT) if error else None


def with_others(view: View, message: str, remedy: str) -> Sentence:
    """Returns the message and remedy with the host's other interpreters: a list of them, and the inventory line for the
    first one with torch."""
    others: Sequence[View] = view.get("interpreters") or ()
    if view.get("container"):
        return Sentence(message, IN_IMAGE)
    if not others:
        return Sentence(message)
    fit = [one for one in others if one.get("torch")] or others
    listed = few((f"{one['path']} (Python {one['version']}, {_torch(one)})" for one in fit), LISTED)
    if fit[0].get("torch"):
        found = str(fit[0]["path"])
        as_yaml = found if PLAIN.fullmatch(found) else json.dumps(found)
        remedy = f"in fleet.yaml: python: {as_yaml}; in a hostfile, after the host: python={shlex.quote(found)}"
    elif len(others) > 1:
        return Sentence(message, f"none of {len(others)} interpreters found there has torch; {remedy}")
    return Sentence(message, f"it has {listed}; {remedy}")


def _torch(one: View) -> str:
    if not one.get("torch"):
        return "no torch"
    return f"torch {one['torch']}" + (f", CUDA {one['cuda']}" if one.get("cuda") else "")


def missing_modules(view: View) -> Any:
    if "versions" not in view:
        return MISSING
    known = {
        **view["packages"],
        **{name: (view.get(name) or {}).get("version") for name in ("torch", "deepspeed") if name in view},
    }
    missing = [name for name in view["want"].modules if not known.get(name)]
    are = "is" if len(missing) == 1 else "are"
    if not missing:
        return None
    closed = f"; its {', '.join(view['unreadable'])} cannot be read" if view.get("unreadable") else ""
    text = f"{' and '.join(missing)} {are} not installed for {lookup(view, 'python.path')}{closed}"
    return with_others(view, Reason("needed for a run: ") + Reason.of_node(text), INSTALL)


def imports(view: View) -> Sentence | None:
    why = "; ".join(f"import {name}: {error}" for name, error in (view.get("imports") or {}).items())
    return Sentence(Reason.of_node(why)) if why else None


def other_packages(view: View) -> Any:
    """Returns {name: version} of the packages that no other rule compares; MISSING if there are none."""
    own = {"torch", "deepspeed", *NOTABLE}
    return {name: version for name, version in (view.get("packages") or {}).items() if name not in own} or MISSING


RULES = (
    Rule(
        "activate",
        "activate",
        "clear",
        "the activate line: it failed",
        "run the inventory's 'activate' line by hand there: ssh HOST, then bash",
    ),
    Rule(
        "python-missing",
        broken,
        "clear",
        "the training interpreter",
        CORRECT,
        needs="python",
        essential=True,
    ),
    Rule(
        "module-missing",
        missing_modules,
        "clear",
        "needed for a run",
        INSTALL,
    ),
    Rule("import-fails", imports, "clear", "what a run imports", REINSTALL),
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
        covered_by=("python-version",),
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
        covered_by=("module-missing",),
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
