"""Judges the state of each GPU: which processes use it, its mode, and what slows it down."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from functools import partial

from fleet.errors import Reason
from fleet.model import grouped
from fleet.rules.neighbours import neighbours
from fleet.rules.rule import Rule, Sentence, Severity, View
from fleet.rules.units import few, size

FEW = 4  # so many processes are listed
HELD = 0.1  # share of a GPU's memory; a driver keeps less for itself
SLOWED = {0x08: "by the hardware", 0x20: "for heat", 0x40: "for heat", 0x80: "for want of power"}


def used(view: View) -> Container[int]:
    """Returns the indexes of the GPUs that ranks are to use there: the selected ones; without a selection, the first
    ones."""
    want = view["want"]
    ranks = want.ranks or (want.part.ranks if want.part else None)
    every = range(len(view.get("gpus") or ()))
    return want.devices if want.devices is not None else every[:ranks]


def judged(
    view: View, wrong: Callable[[View], str | None], spared: Severity | None = "warning", *, whole: bool = False
) -> Sentence | None:
    """Returns the finding on a host's GPUs; None if nothing is wrong. A launch judges the GPUs that it uses, `check`
    all of them. wrong: returns what is wrong with one GPU, or None. spared: the severity if ranks are to use none of
    the faulty GPUs; None for the rule's own severity. whole: a launch judges all GPUs, too."""
    mine, every = used(view), whole or view["want"].part is None
    known = [gpu for gpu in view.get("gpus") or () if every or gpu["index"] in mine]
    found = [(text, gpu["index"]) for gpu in known if (text := wrong(gpu))]
    parts = [f"GPU {', '.join(map(str, indexes))} {text}" for text, indexes in grouped(found).items()]
    severity = None if any(index in mine for _, index in found) else spared
    gpus = tuple(index for _, index in found)
    return Sentence(Reason.of_node("; ".join(parts)), severity=severity, gpus=gpus) if found else None


def lost(view: View) -> str | None:
    """Returns how many of the driver's GPUs nvidia-smi lists, if it lists some but not all."""
    found, known = view.get("gpus"), view.get("driver_gpus") or 0
    return f"{len(found)} of {known} answer" if found is not None and 0 < len(found) < known else None


def throttled(gpu: View) -> str | None:
    why = [text for bit, text in SLOWED.items() if (gpu.get("slowed") or 0) & bit]
    return f"is slowed down {why[-1]}" if why else None


def flagged(name: str, wrong: object, text: str, view: View) -> str | None:
    """Returns the text if the fact `name` equals `wrong`."""
    return text if view.get(name) == wrong else None


def divided(view: View) -> str | None:
    gpus = view.get("gpus") or ()
    on = [str(gpu["index"]) for gpu in gpus if gpu.get("mig")]
    return f"MIG mode is on for GPU {', '.join(on)} only" if 0 < len(on) < len(gpus) else None


def held(view: View) -> str | None:
    """Returns the finding on GPU memory that is held by a process that is not visible on the host. A container does not
    see all processes of its runs, so a host with a run is not judged."""
    gpus, processes = view.get("gpus") or (), view.get("gpu_processes")
    seen = {process.get("gpu") for process in processes or ()}
    found = [
        f"{size(gpu['used'])} of GPU {gpu['index']}"
        for gpu in gpus
        if gpu.get("uuid") not in seen and gpu.get("used", 0) > HELD * (gpu.get("memory") or 0) > 0
    ]
    is_known = processes is not None and view.get("runs") == []
    return f"no process shows that holds {', '.join(found)}" if found and is_known else None


def busy(view: View) -> Sentence | None:
    known = {run["run"] for run in neighbours(view)}  # runs that another rule reports, or that may share the host
    found = [
        process
        for process in view.get("gpu_processes") or ()
        if process.get("run_id") not in known and not _SERVER.search(str(process.get("command") or ""))
    ]
    listed = {gpu.get("uuid") for gpu in view.get("gpus") or ()} - {None}
    mine = {gpu.get("uuid") for gpu in view.get("gpus") or () if gpu["index"] in used(view)}
    those = [process for process in found if process.get("gpu") in mine or process.get("gpu") not in listed]
    shown = those or ([] if view["want"].part is not None else found)
    text = f"GPUs in use: {few(dict.fromkeys(map(_who, shown)), FEW)}"
    return Sentence(Reason.of_node(text), severity=None if those else "warning") if shown else None


# NVIDIA's MPS runs this on every GPU, idle or not; it computes nothing itself
_SERVER = re.compile(r"(?:^|/)nvidia-cuda-mps-(?:server|control)\b")


def _who(process: View) -> str:
    """Returns a process that computes on a GPU: its run, or its command if that is known, and its pid."""
    name = f"run {process['run_id']}" if process.get("run_id") else process.get("command")
    return f"{name} (pid {process['pid']})" if name else f"pid {process['pid']}"


RULES = (
    Rule(
        "gpu-lost",
        lost,
        "clear",
        "GPUs",
        "'dmesg | grep -i xid' there shows the missing one; often only a reboot brings it back",
        "warning",
        run=True,
        covered_by=("gpu-slots",),
    ),
    Rule(
        "gpu-throttled",
        partial(judged, wrong=throttled, spared=None),
        "clear",
        "GPU clocks",
        "the slowest GPU sets the pace: look at fans, inlet and power supplies; 'nvidia-smi -q -d PERFORMANCE' there",
        "warning",
        run=True,
    ),
    Rule(
        "gpu-prohibited",
        partial(judged, wrong=partial(flagged, "mode", "Prohibited", "may not compute (mode Prohibited)")),
        "clear",
        "GPUs",
        "was it taken out for a reason? choose others (-w HOST:0,2), or allow it: 'nvidia-smi -i N -c DEFAULT' there",
    ),
    Rule(
        "gpu-mig",
        divided,
        "clear",
        "GPUs",
        "ranks would have GPUs of unlike sizes: choose the others (-w HOST:0,2), or have MIG off, or on, for all",
        "warning",
        run=True,
    ),
    Rule(
        "gpu-held",
        held,
        "clear",
        "GPU memory",
        "another container or user may hold it: 'fuser -v /dev/nvidia*' there, as root, shows who",
        "warning",
        run=True,
    ),
    Rule(
        "gpu-reset",
        partial(judged, wrong=partial(flagged, "reset", True, "requires a reset")),
        "clear",
        "GPUs",
        "reset it: 'nvidia-smi -r -i N' there while nothing uses it, or reboot; or choose others (-w HOST:0,2)",
    ),
    Rule("gpu-busy", busy, "clear", "GPUs in use", "wait for it, end it, or choose other devices (-w HOST:2,3)"),
)
