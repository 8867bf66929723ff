"""Explains lines of the kernel's log about a run. KERNEL is a table; the first match wins. Pure."""

from __future__ import annotations

import re

from fleet.protocol.messages.run import KernelLine
from fleet.rules.hint import Hint, first_match
from fleet.rules.signals import SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV
from fleet.rules.xid import explained, numbers

MEMORY = "fewer data loader workers, a smaller batch, or fewer ranks a node (--nproc-per-node)"


_LOST_A_CHILD = r"[Kk]illed|exited unexpectedly|BrokenProcessPool|EOFError|terminated abruptly"
_GPU = r"CUDA|NCCL|cuDNN|CUBLAS|HIP|collective|[Ww]atchdog|Xid"
_DISK = r"I/O error|Input/output|Errno 5\b|Read-only file system|Stale file|Bus error|Structure needs cleaning"
_LIMIT = f"a higher limit (of the container, the service, the Slurm job), or {MEMORY}"


def _out_of_memory(pattern: str, why: str, remedy: str) -> Hint:
    return Hint(pattern, remedy, why, signals=(SIGKILL,), lines=_LOST_A_CHILD, sudden=True)


def _xid(number: str, meaning: str, *, unfit: bool = True) -> Hint:
    pattern = rf"NVRM: Xid \(([^)]*)\): ((?:{number})\b)(?!.* to 0x0 \(None\))"  # the excluded line reports recovery
    return Hint(pattern, "", meaning, worked_out=lambda found: explained(int(found[2])).remedy, lines=_GPU, unfit=unfit)


SUDDEN_SECONDS = 30.0  # between the kernel's line and the end that it explains; the two clocks may differ a little

KERNEL = (
    _out_of_memory(
        r"cgroup out of memory: Killed process \d+ \(([^)]*)\)",
        r"out of memory: the kernel killed \1, the limit of its cgroup was reached",
        _LIMIT,
    ),
    _out_of_memory(
        r"Killed process \d+[^(]*\(([^)]*)\)",
        r"out of memory: the kernel killed \1",
        f"{MEMORY}; 'fleet exec -w {{host}} -- free -h' shows what is left there",
    ),
    _out_of_memory(
        r"oom_kill \d+ in memory.events",
        "out of memory: the kernel killed a process, the limit of its cgroup was reached",
        _LIMIT,
    ),
    Hint(
        r"NVRM: .*(?:Xid.*: 79\b|fallen off the bus|GPU is lost)",
        "mostly power, heat or the slot: only a reboot of {host} brings it back; 'fleet check' shows whether it did",
        "a GPU has fallen off the bus (Xid 79)",
        lines=_GPU,
        unfit=True,
    ),
    _xid(numbers("memory", is_fit=False), r"the GPU at \1 has memory errors (Xid \2)"),
    _xid(numbers("memory", is_fit=True), r"the GPU at \1 has memory errors (Xid \2), and can go on", unfit=False),
    _xid(rf"(?!(?:{numbers('program', is_fit=True)})\b)\d+", r"the GPU at \1 failed (Xid \2)"),
    _xid(r"\d+", r"a program made an error on the GPU at \1 (Xid \2)", unfit=False),
    Hint(
        r"nvidia-nvswitch.*SXid",
        "restart nvidia-fabricmanager on {host} while no GPU there is in use, or reboot it",
        "the NVSwitch failed (SXid)",
        lines=_GPU,
        unfit=True,
    ),
    Hint(
        r"amdgpu .*(reset|timeout|uncorrect\w*)",
        "reset it (rocm-smi) while nothing uses it, or reboot {host}",
        r"an AMD GPU failed (\1)",
        lines=_GPU,
        unfit=True,
    ),
    Hint(
        r"[Hh]ardware [Ee]rror(?!.*\b[Cc]orrected)|Uncorrect",
        "memory or processor of {host}: see its machine check log (ras-mc-ctl, mcelog)",
        "the hardware reports an error that cannot be corrected",
        signals=(SIGBUS, SIGKILL, SIGSEGV),
        lines=r"Bus error",
        unfit=True,
    ),
    Hint(
        r"(?:segfault at|general protection|traps: ).*? in ([^\s\[]+)",
        "--env PYTHONFAULTHANDLER=1 shows where in the script; is that library the same on all hosts ('fleet check')?",
        r"a crash in native code, in \1",
        signals=(SIGSEGV, SIGBUS, SIGILL, SIGFPE),
        lines=_LOST_A_CHILD,
        sudden=True,
    ),
    Hint(
        r"I/O error|(?:EXT4-fs|BTRFS).*error|XFS .*(?:[Cc]orrupt|[Ss]hut)|[Rr]emounting filesystem read-only",
        "'fleet exec -w {host} -- dmesg' shows which; replace it before the next run",
        "a disk there fails",
        signals=(SIGBUS,),
        lines=_DISK,
        unfit=True,
    ),
    Hint(
        r"nfs: server (\S+) not responding",
        "look at that server, or at the link of {host} to it",
        r"the file server \1 did not answer",
        lines=_DISK + r"|Errno 110|timed out",
    ),
)


def explains(line: KernelLine, signal: int, text: str) -> Hint | None:
    """Returns the rule by which a line explains the end of a process. line: a line of the kernel's log; its time is in
    seconds from that end, its rank is the process's own, or None. signal: the signal that ended the process, 0 for
    none. text: the end of the process's output."""
    rule, mine = first_match(KERNEL, line["text"]), line["rank"] is not None
    if rule is None or (rule.sudden and not mine and abs(line["time"]) > SUDDEN_SECONDS):
        return None
    return rule if mine or signal in rule.signals or re.search(rule.lines, text) else None
