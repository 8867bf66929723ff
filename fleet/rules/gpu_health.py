"""Judges the health of each GPU: memory, heat, power, clocks, links to host and other GPUs, and the kernel's log.

Each threshold has its source next to it. Values that nvidia-smi does not report are never judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from fleet.model import grouped
from fleet.rules.gpu_state import flagged, judged
from fleet.rules.rule import MISSING, Rule, Sentence, Severity, View
from fleet.rules.units import few
from fleet.rules.xid import reported

CORRECTED = 20_000_000  # a GPU may have so many corrected errors: Azure/azurehpc-health-checks, azure_gpu_ecc.nhc
SRAM = 4  # NVIDIA replaces GPUs with more SRAM errors (azure_gpu_ecc.nhc); drivers after 535 report this themselves
ROWS = 512  # rows that can be remapped: docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt
PAGES = 10  # retired pages: facebookresearch/gcm, gpu_retired_pages_threshold; a GPU can retire 64
HOT = 90  # degrees C: V100 to A100 and T4 slow down at 87 to 93 (nvidia-smi -q). Later GPUs report temperature_left
CAPPED = 0.95  # share of the default power limit; readings are accurate to 5 W (nvidia-smi --help-query-gpu)
BUSY = 90  # percent of use from which a GPU is busy
IDLE, POWER_CAP = 0x1, 0x4  # nvml.h: nvmlClocksEventReasonGpuIdle, nvmlClocksEventReasonSwPowerCap
REPLAYS = 100  # a link repeats garbled packets: a few are harmless. One other link error is too many (gcm)

# docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html, "Recovery action flag"
RECOVERY = {"GPU Reset": "a reset", "Reset": "a reset", "Node Reboot": "a reboot of its host", "Reboot": "a reboot"}
DRAINED = {"Drain P2P": "that its traffic to other GPUs stops", "Drain and Reset": "a reset once it is idle"}


def above(most: int, names: tuple[str, ...], text: str, gpu: View) -> str | None:
    """Returns the text with the sum of the GPU's counts `names`, if the sum is more than `most`; None otherwise."""
    count = sum(gpu.get(name, 0) for name in names)
    return text.format(count) if count > most else None


def sram(gpu: View) -> str | None:
    exceeded = gpu.get("sram_exceeded", gpu.get("sram_errors_ever", 0) > SRAM)
    return "has had more uncorrectable errors in its SRAM than NVIDIA tolerates" if exceeded else None


def rows_failed(gpu: View) -> str | None:
    failed = gpu.get("rows_failed") or gpu.get("rows_uncorrected", 0) >= ROWS
    return "has no rows left to replace bad ones of its memory" if failed else None


def recovers(actions: dict[str, str], gpu: View) -> str | None:
    action = actions.get(gpu.get("recovery", ""))
    return f"requires {action} ({gpu['recovery']})" if action else None


def hot(gpu: View) -> str | None:
    degrees, left = gpu.get("temperature", 0), gpu.get("temperature_left")
    return f"is at {degrees} C" if (degrees >= HOT if left is None else left <= 0) else None


def capped(gpu: View) -> str | None:
    default = gpu.get("power_default", 0)
    limit = min(gpu.get("power_limit", default), gpu.get("power_enforced", default))
    return f"may draw {limit:g} W, {default:g} W is its default" if 0 < limit < CAPPED * default else None


def shows_clock(gpu: View) -> bool:
    """Returns whether a GPU's clock can be judged: the GPU is busy, not at its power cap, and not idle. A healthy T4 or
    L4 at full use is at its power cap. A GPU that just became idle may still report the use of a moment ago."""
    return gpu.get("use", 0) >= BUSY and not gpu.get("slowed", POWER_CAP) & (POWER_CAP | IDLE)


def slow(gpu: View) -> str | None:
    clock, most = gpu.get("clock", 0), gpu.get("clock_max", 0)
    # a hardware slowdown lowers clocks by a factor of 2 or more: nvml.h, nvmlClocksThrottleReasonHwSlowdown
    return f"computes at {clock} of {most} MHz" if shows_clock(gpu) and 0 < clock * 2 < most else None


def generation(gpu: View) -> str | None:
    """Returns the text that a busy GPU's PCIe link is slow; None otherwise. An idle GPU is not judged: it slows its
    link to save power."""
    now, most = gpu.get("pcie_gen", 0), gpu.get("pcie_gen_max", 0)
    works = gpu.get("use", 0) > 0 and not gpu.get("slowed", IDLE) & IDLE
    return f"works at PCIe generation {now}, {most} is possible" if works and 0 < now < most else None


def fabric(gpu: View) -> str | None:
    state, status = gpu.get("fabric"), gpu.get("fabric_status", "Success")
    if state in ("Not Started", "In Progress"):
        return f"is not in the NVLink fabric (state {state})"
    return f"is not in the NVLink fabric ({status})" if state == "Completed" and status != "Success" else None


def named(view: View, found: dict[int, str]) -> Sentence | None:
    """Returns the finding on the GPUs in `found`; None if there are none. found: GPU index -> what is wrong with it."""
    return judged(view, lambda gpu: found.get(gpu["index"]), None)


def lanes(view: View) -> dict[int, int]:
    """Returns GPU index -> PCIe lanes, only for GPUs whose link is at its highest generation. A lower generation is
    that of an idle GPU, whose link may have fewer lanes, too."""
    awake = [gpu for gpu in view.get("gpus") or () if gpu.get("pcie_gen") == gpu.get("pcie_gen_max")]
    return {gpu["index"]: gpu["pcie_width"] for gpu in awake if gpu.get("pcie_width")}


def active(view: View) -> dict[int, int]:
    return {each["gpu"]: each["active"] for each in view.get("nvlinks") or ()}


def fewer(of: Callable[[View], dict[int, int]], what: str, view: View) -> Sentence | None:
    """Returns the finding on GPUs that have fewer `what` than another GPU of their model on that host. of: view -> {GPU
    index: count}. The reported maximum is of no use: a card has NVLinks that no bridge connects, and a slot may have
    fewer lanes than the card (nvidia-smi -q of an L4: 8 of 16)."""
    models = {gpu["index"]: gpu.get("name") for gpu in view.get("gpus") or ()}
    found = {index: count for index, count in of(view).items() if index in models}
    by_model = grouped((models[index], count) for index, count in found.items())
    most = {index: max(by_model[models[index]]) for index in found}
    less = {index: count for index, count in found.items() if 0 < count < most[index]}
    return named(view, {index: f"has {count} of {most[index]} {what}" for index, count in less.items()})


def alike(of: Callable[[View], dict[int, int]], view: View) -> Any:
    """Returns the count per GPU as a text, to compare hosts; MISSING if no GPU has one. of: view -> {GPU index:
    count}."""
    found = of(view)
    if not found:
        return MISSING
    usual = Counter(found.values()).most_common(1)[0][0]
    others = [f"GPU {index}: {count}" for index, count in found.items() if count != usual]
    return f"{usual} ({few(others)})" if others else str(usual)


def link_errors(view: View) -> Sentence | None:
    found = {}
    for each in view.get("nvlinks") or ():
        counted = {name: each.get(name, 0) for name in ("recovery", "crc", "replay")}
        if counted["recovery"] or counted["crc"] or counted["replay"] >= REPLAYS:
            parts = [f"{count} {name}" for name, count in counted.items() if count]
            found[each["gpu"]] = f"has NVLink errors ({', '.join(parts)})"
    return named(view, found)


def rule(
    name: str,
    wrong: Callable[[View], str | None],
    what: str,
    remedy: str,
    severity: Severity = "warning",
    covered_by: tuple[str, ...] = (),
) -> Rule:
    """Returns a rule that judges each GPU. wrong: returns what is wrong with one GPU, or None. The others are Rule's
    fields."""
    fact = partial(judged, wrong=wrong, spared="warning" if severity == "error" else None)
    return Rule(name, fact, "clear", what, remedy, severity, run=True, covered_by=covered_by)


MEMORY, CLOCKS, PCIE, LINKS = "GPU memory errors", "GPU clocks", "PCIe links of GPUs", "NVLinks"
AT_REST = "reset it while nothing uses it ('nvidia-smi -r -i N' there), or reboot"
FABRIC = (
    "'systemctl restart nvidia-fabricmanager' there while no GPU there is in use, its log says why; from B200 on it "
    "needs nvlsm, too"
)
RULES = (
    rule(
        "gpu-recovery",
        partial(recovers, RECOVERY),
        "GPUs",
        "end what computes there, then 'nvidia-smi -r -i N' or a reboot; or choose others (-w HOST:0,2)",
        "error",
        ("gpu-reset",),
    ),
    # a warning: CUDA works without the fabric in a VM, outside an activated partition, and for one rank
    rule("gpu-fabric", fabric, "the NVLink fabric", f"NVLink P2P does not work until it is: {FABRIC}"),
    rule(
        "gpu-sram",
        sram,
        MEMORY,
        "'dcgmi diag -r 3' there tests it; have it replaced (RMA): a reset does not mend it",
    ),
    rule(
        "gpu-rows-failed",
        rows_failed,
        MEMORY,
        "'dcgmi diag -r 3' there tests it; have it replaced (RMA): a reset does not mend it",
    ),
    rule(
        "gpu-rows-pending",
        partial(flagged, "rows_pending", True, "has bad rows of its memory that the next reset replaces"),
        MEMORY,
        f"runs are safe until then; {AT_REST}",
    ),
    rule(
        "gpu-pages",
        partial(above, PAGES, ("pages_corrected", "pages_uncorrected"), "has retired {} pages of its memory"),
        MEMORY,
        "have it replaced where there are more by the week: 'nvidia-smi -q -d PAGE_RETIREMENT' there counts them",
    ),
    rule(
        "gpu-pages-pending",
        partial(flagged, "pages_pending", True, "has bad pages of its memory that the next reset retires"),
        MEMORY,
        f"programs still get these pages: {AT_REST}",
    ),
    rule(
        "gpu-ecc-corrected",
        partial(above, CORRECTED, ("ecc_corrected",), "has corrected {} memory errors since its driver was loaded"),
        MEMORY,
        "'nvidia-smi -q -d ECC' there shows whether they grow: have it replaced where they do",
    ),
    rule("gpu-drain", partial(recovers, DRAINED), "GPUs", f"end what computes there; {AT_REST}"),
    rule(
        "gpu-hot",
        hot,
        CLOCKS,
        "look at fans, inlet and the load of its neighbours: beyond this it slows down, then shuts off",
        covered_by=("gpu-throttled",),
    ),
    rule(
        "gpu-power-cap",
        capped,
        CLOCKS,
        "'nvidia-smi -i N -pl WATTS' there, as root, sets the default again; where it is meant, ignore this rule",
    ),
    rule(
        "gpu-clock",
        slow,
        CLOCKS,
        "'nvidia-smi -q -d CLOCK,PERFORMANCE' there shows a lock: '-rgc' and '-rac' take it off; power cables, if none",
        covered_by=("gpu-throttled",),
    ),
    Rule(
        "gpu-pcie-width",
        partial(fewer, lanes, "PCIe lanes"),
        "clear",
        PCIE,
        "switch off and reseat it, or its riser: a lane makes no contact",
        "warning",
        run=True,
    ),
    Rule(
        "gpu-pcie-widths",
        partial(alike, lanes),
        "equal",
        "PCIe lanes per GPU",
        "'nvidia-smi -q -d PCIE' there shows them: reseat the GPU or its riser; or that slot has fewer",
        "warning",
        covered_by=("gpu-pcie-width", "gpu-model"),
    ),
    rule("gpu-pcie-gen", generation, PCIE, "look at the BIOS's setting of its slot, at its riser, and reseat it"),
    rule(
        "gpu-persistence",
        partial(flagged, "persistence", False, "has persistence mode off"),
        "GPUs",
        "each start of a program initializes it again: start nvidia-persistenced there, or 'nvidia-smi -pm 1'",
        "info",
    ),
    Rule(
        "gpu-nvlink-down",
        partial(fewer, active, "NVLinks"),
        "clear",
        LINKS,
        "restart nvidia-fabricmanager, or reset the GPU, while no GPU there is in use; if it stays down: reseat it",
        "warning",
        run=True,
    ),
    Rule(
        "gpu-nvlinks",
        partial(alike, active),
        "equal",
        "NVLinks per GPU",
        "see 'nvidia-smi nvlink -s' there; is a bridge missing? "
        "Reset the GPU or restart nvidia-fabricmanager while no GPU there is in use",
        "warning",
        covered_by=("gpu-nvlink-down", "gpu-model", "gpu-fabric"),
    ),
    Rule(
        "gpu-nvlink-errors",
        link_errors,
        "clear",
        LINKS,
        "'nvidia-smi nvlink -e' there shows whether they grow in a run: reseat the GPU or its bridge, or replace it",
        "warning",
        run=True,
    ),
    Rule(
        "gpu-fabric-manager",
        partial(flagged, "fabric_manager", False, "NVSwitches are there, and no fabric manager runs"),
        "clear",
        "the NVLink fabric",
        f"CUDA may not start until one does: {FABRIC}",
        "warning",
        run=True,
        covered_by=("gpu-fabric",),
    ),
    Rule("gpu-xid", partial(reported, False), "clear", "the kernel's log", AT_REST, "warning", run=True),
    Rule("gpu-xid-minor", partial(reported, True), "clear", "the kernel's log", "nothing to do at once", "info"),
)
