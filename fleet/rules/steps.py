"""Holds the rules about steps of the probe (node/preflight/probe.py) that hang or fail on a node."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fleet.errors import Reason
from fleet.protocol.steps import OWN_SECONDS
from fleet.rules.rule import Rule, Sentence, Severity, View

LOOK = "look at dmesg there"
NEEDED = ("activate", "python")
# steps that only a launch has
OF_A_RUN = ("files", "code", "network", "port")
# steps whose failure is reported by rules other than "step-failed"
ELSEWHERE = (*NEEDED, *OF_A_RUN)
# (step, severity, remedy) if the step does not end in time
HANGS: tuple[tuple[str, Severity, str], ...] = (
    ("activate", "error", "the 'activate' line waits for something: run it by hand there"),
    ("python", "error", "the interpreter, or a .pth file of it, lies on a file system that hangs: start it by hand"),
    ("gpus", "error", "nvidia-smi hangs: see 'dmesg | grep -i xid'; often only a reboot helps"),
    ("gpu processes", "warning", "nvidia-smi hangs: see 'dmesg | grep -i xid'"),
    (
        "gpu health",
        "warning",
        "nvidia-smi is slow, or hangs: does nvidia-persistenced run there? 'dmesg | grep -i xid'",
    ),
    ("nvlinks", "warning", "nvidia-smi hangs: see 'dmesg | grep -i xid'"),
    ("kernel log", "warning", LOOK),
    (
        "imports",
        "warning",
        "importing torch takes that long there: is its file system slow? After one import that works it is not tried "
        "again: 'fleet check --timeout 120'",
    ),
    ("container", "warning", "the container runtime hangs: try it there by hand: podman images"),
    ("disk workdir", "error", "the file system hangs: look at its server, or remount it"),
    ("disk home", "error", "the file system hangs: look at its server, or remount it"),
    ("disk fleet", "error", "the file system hangs: look at its server, or remount it"),
    ("disk tmp", "error", "the file system hangs: look at the disk in dmesg"),
    ("disk shm", "warning", LOOK),
    ("compilers", "warning", "a folder of the PATH lies on a file system that hangs"),
    ("nccl", "warning", "a folder of LD_LIBRARY_PATH lies on a file system that hangs"),
    ("data files", "warning", "the file system of data that was synced hangs, or is slow: look at its server"),
    ("shadows", "warning", "the file system of the workdir hangs: look at its server, or remount it"),
    *((step, "warning", LOOK) for step in ("system", "hardware", "limits", "driver", "interfaces", "infiniband")),
)


def broken(steps: Sequence[str], view: View) -> str:
    """Returns the errors of these steps; if `steps` is empty, of all steps that no other rule covers."""
    found = (view.get("failed") or {}).items()
    return "; ".join(f"{step}: {why}" for step, why in found if step in steps or not steps and step not in ELSEWHERE)


def stuck(step: str, view: View) -> Sentence | None:
    """Returns a finding if a step that a launch needs failed or timed out."""
    late = "no answer in time" if step in (view.get("timed_out") or ()) else None
    why = (view.get("failed") or {}).get(step, late)
    return Sentence(Reason.of_node(f"preflight of its {step}: {why}")) if why else None


RULES = (
    Rule(
        "step-needed",
        partial(broken, NEEDED),
        "clear",
        "the probe",
        "look at what it names on that host",
        essential=True,
    ),
    Rule("step-failed", partial(broken, ()), "clear", "the probe", "look at what it names on that host", "warning"),
    *(
        Rule(
            f"hangs-{step.replace(' ', '-')}",
            f"hangs.{step}",
            "clear",
            step,
            remedy,
            severity,
            run=step in OWN_SECONDS,
            essential=True,
        )
        for step, severity, remedy in HANGS
    ),
)
