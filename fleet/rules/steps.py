"""The steps that ask a node for its facts: those that hang, and those that break."""

from __future__ import annotations

from fleet.rules.rule import Rule, Severity, View

LOOK = "look at dmesg there"
NEEDED_STEPS = ("activate", "python")
# probe step -> what it means that it did not answer
HANGS: tuple[tuple[str, Severity, str], ...] = (
    ("activate", "error", "the 'activate' line waits for something: run it by hand there"),
    ("python", "error", "the interpreter, or a .pth file of it, lies on a file system that hangs: start it by hand"),
    ("gpus", "error", "nvidia-smi hangs: see 'dmesg | grep -i xid'; often only a reboot helps"),
    ("gpu processes", "warning", "nvidia-smi hangs: see 'dmesg | grep -i xid'"),
    ("disk workdir", "error", "the file system hangs: look at its server, or remount it"),
    ("disk home", "error", "the file system hangs: look at its server, or remount it"),
    ("disk tmp", "error", "the file system hangs: look at the disk in dmesg"),
    ("disk shm", "warning", LOOK),
    ("compilers", "warning", "a folder of the PATH lies on a file system that hangs"),
    ("nccl", "warning", "a folder of LD_LIBRARY_PATH lies on a file system that hangs"),
    *((step, "warning", LOOK) for step in ("system", "hardware", "limits", "driver", "interfaces", "infiniband")),
)


def broken(view: View) -> str:
    return _broken(view, needed=True)


def failed(view: View) -> str:
    return _broken(view, needed=False)


def _broken(view: View, needed: bool) -> str:
    found = (view.get("failed") or {}).items()
    return "; ".join(f"{step}: {why}" for step, why in found if (step in NEEDED_STEPS) == needed)


RULES = (
    Rule("step-needed", broken, "clear", "the probe", "look at what it names on that host"),
    Rule("step-failed", failed, "clear", "the probe", "look at what it names on that host", "warning"),
    *(
        Rule(f"hangs-{step.replace(' ', '-')}", f"hangs.{step}", "clear", step, remedy, severity)
        for step, severity, remedy in HANGS
    ),
)
