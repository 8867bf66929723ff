"""Explains NVIDIA's Xid errors. XIDS is a table of number -> meaning, the usual culprit, and the remedy."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fleet.errors import Reason
from fleet.rules.rule import Sentence, View
from fleet.rules.units import seconds

Whose = Literal["program", "memory", "hardware", "driver"]
RECENT = 86_400.0  # an error is reported for so many seconds; azure_gpu_xid.nhc: 2 h, which may miss one of last night

# remedies by the buckets of NVIDIA's catalog:
# docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, "Immediate Action"
DIAGNOSE = "'dcgmi diag -r 3' there tests it"
RESTART_APP = (
    "mostly an illegal access in a kernel: --env CUDA_LAUNCH_BLOCKING=1 has the traceback point at it; always the same "
    f"GPU: its hardware, {DIAGNOSE}"
)
CONSEQUENCE = "it follows from another error: look at the lines before it"
IGNORE = "nothing to do at once; reset it when it is idle ('nvidia-smi -r -i N' there), replace it if they return"
CONTAINED = "start the run again; reset it when it is idle ('nvidia-smi -r -i N' there), replace it if they return"
RESET = "reset it while nothing uses it ('nvidia-smi -r -i N' there), or reboot; replace it if it returns"
REPLACE = f"reset it while nothing uses it ('nvidia-smi -r -i N' there); replace it if it returns: {DIAGNOSE}"
REBOOT = "mostly power, heat or the slot: only a reboot brings it back; replace it if it returns"
LINK = (
    "restart nvidia-fabricmanager there while no GPU there is in use, or reboot; if it returns on one link: reseat the "
    "GPU, or replace it"
)
SUPPORT = "it cannot repair itself any more: have it replaced"
NAMED = "the line says what it requires: a reset ('nvidia-smi -r -i N' there while nothing uses it) or a reboot"
UNKNOWN = (
    "NVIDIA's list of Xid errors explains the number; reset it while nothing uses it ('nvidia-smi -r -i N' "
    "there), or reboot"
)


class Xid(NamedTuple):
    """Explains an Xid error (an error number of NVIDIA's driver). means: what happened. whose: the usual culprit."""

    means: str
    whose: Whose
    remedy: str

    @property
    def is_minor(self) -> bool:
        """Returns whether the GPU is as good as before the error."""
        return self.remedy in (RESTART_APP, CONSEQUENCE, IGNORE)

    @property
    def is_fit(self) -> bool:
        """Returns whether the GPU can go on computing without a repair."""
        return self.is_minor or self.remedy == CONTAINED


XIDS: dict[int, Xid] = {
    11: Xid("an invalid push buffer", "program", RESTART_APP),
    13: Xid("an exception in a kernel", "program", RESTART_APP),
    25: Xid("an illegal push buffer", "program", RESTART_APP),
    31: Xid("a page fault in a kernel", "program", RESTART_APP),
    32: Xid("a corrupted push buffer", "program", RESTART_APP),
    43: Xid("the GPU stopped a program", "program", CONSEQUENCE),
    45: Xid("the GPU ended a program after another error", "program", CONSEQUENCE),
    46: Xid("the GPU stopped", "hardware", RESET),
    48: Xid("a double-bit error of its memory", "memory", REPLACE),
    62: Xid("its micro-controller halted", "driver", RESET),
    63: Xid("a row of its memory is to be remapped", "memory", IGNORE),
    64: Xid("a row of its memory could not be remapped", "memory", REPLACE),
    68: Xid("an exception of its video decoder", "program", RESTART_APP),
    69: Xid("a class error in a kernel", "program", RESTART_APP),
    74: Xid("an NVLink error", "hardware", LINK),
    79: Xid("it has fallen off the bus", "hardware", REBOOT),
    92: Xid("many single-bit errors of its memory", "memory", IGNORE),
    94: Xid("a memory error, contained in one program", "memory", CONTAINED),
    95: Xid("an uncontained memory error", "memory", REPLACE),
    109: Xid("a context switch timed out", "driver", RESET),
    110: Xid("a security fault", "driver", RESET),
    119: Xid("its GSP firmware does not answer", "driver", RESET),
    120: Xid("an error of its GSP firmware", "driver", RESET),
    136: Xid("an NVLink could not be trained", "hardware", LINK),
    137: Xid("an illegal access to another GPU", "program", RESTART_APP),
    140: Xid("a memory error that was not recovered from", "memory", REPLACE),
    143: Xid("it could not be initialized", "hardware", RESET),
    **{number: Xid("an NVLink error", "hardware", LINK) for number in range(144, 151)},
    154: Xid("what it requires to recover has changed", "hardware", NAMED),
    155: Xid("an NVLink error", "driver", LINK),
    156: Xid("a part of it was retired", "memory", IGNORE),
    157: Xid("a part of it could not be retired", "memory", SUPPORT),
    158: Xid("a fatal timeout", "hardware", RESET),
    171: Xid("an uncorrectable error of its memory", "memory", REPLACE),
    172: Xid("an uncorrectable error of its caches", "memory", REPLACE),
}


def explained(number: int) -> Xid:
    return XIDS.get(number, Xid("an error", "hardware", UNKNOWN))


def numbers(whose: Whose, is_fit: bool) -> str:
    """Returns a regular expression for the numbers of the errors with this culprit and this fitness."""
    return "|".join(str(number) for number, xid in XIDS.items() if xid.whose == whose and xid.is_fit is is_fit)


def place(bus: str) -> tuple[str, ...]:
    """Returns a PCI address without its function. Leading zeros are cut: nvidia-smi and the kernel write the domain
    differently."""
    return tuple(part.lstrip("0") for part in bus.lower().partition(".")[0].split(":"))


def reported(minor: bool, view: View) -> Sentence | None:
    """Returns the finding on the Xid errors in the kernel's log. minor: judges the minor errors; if False, all
    others."""
    index = {place(gpu.get("bus", "")): gpu["index"] for gpu in view.get("gpus") or ()}
    known = [(each, explained(each["xid"])) for each in view.get("xids") or () if each["ago"] <= RECENT]
    found = [(each, xid) for each, xid in known if xid.is_minor is minor]
    texts = []
    for each, xid in found:
        gpu = index.get(place(each["bus"]), f"at {each['bus']}")
        often = f", {each['count']} times" if each["count"] > 1 else ""
        whose = xid.whose if xid.whose in ("program", "driver") else "hardware"
        what = f"Xid {each['xid']} {seconds(each['ago'])} ago{often}: {xid.means}"
        texts.append(f"GPU {gpu}: {what}; mostly a fault of the {whose}")
    remedy = "; ".join(dict.fromkeys(xid.remedy for _, xid in found))
    gpus = dict.fromkeys(gpu for each, _ in found if (gpu := index.get(place(each["bus"]))) is not None)
    return Sentence(Reason.of_node("; ".join(texts)), remedy, gpus=tuple(gpus)) if found else None
