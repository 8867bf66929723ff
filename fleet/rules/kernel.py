"""Explains a line of the kernel's log for a run: a table, first match wins. Pure."""

from __future__ import annotations

import re

from fleet.protocol.messages.run import KernelLine
from fleet.rules.hint import Hint, first_match
from fleet.rules.signals import SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV

MEMORY = "fewer data loader workers, a smaller batch, or fewer ranks a node (--nproc-per-node)"


_LOST_A_CHILD = r"[Kk]illed|exited unexpectedly|BrokenProcessPool|EOFError|terminated abruptly"
_GPU = r"CUDA|NCCL|cuDNN|CUBLAS|HIP|collective|[Ww]atchdog|Xid"
_DISK = r"I/O error|Input/output|Errno 5\b|Read-only file system|Stale file|Bus error|Structure needs cleaning"
# NVIDIA's numbers of errors that an application causes, or that only follow from another one
_OF_A_PROGRAM = r"(?:13|31|43|45|68|69)\b"
_LIMIT = f"a higher limit (of the container, the service, the Slurm job), or {MEMORY}"


def _out_of_memory(pattern: str, why: str, remedy: str) -> Hint:
    return Hint(pattern, remedy, why, signals=(SIGKILL,), words=_LOST_A_CHILD, sudden=True)


SUDDEN_SECONDS = 30.0  # between the kernel's line and what that explains; two clocks drift apart with the years

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
        "mostly power, heat or the slot: only a reboot of {host} brings it back; 'fleet check' tells whether it did",
        "a GPU has fallen off the bus (Xid 79)",
        words=_GPU,
        unfit=True,
    ),
    Hint(
        r"NVRM: Xid \(([^)]*)\): ((?:48|63|64|92|94|95|140)\b)",
        "reset it, replace it if they return; 'fleet exec -w {host} -- nvidia-smi -q -d ECC' counts them",
        r"the GPU at \1 has memory errors (Xid \2)",
        words=_GPU,
        unfit=True,
    ),
    Hint(
        rf"NVRM: Xid \(([^)]*)\): ((?!{_OF_A_PROGRAM})\d+)",
        "reset it (nvidia-smi -r) or reboot {host}; NVIDIA's list of Xid errors tells what the number means",
        r"the GPU at \1 failed (Xid \2)",
        words=_GPU,
        unfit=True,
    ),
    Hint(
        r"NVRM: Xid \(([^)]*)\): (\d+)",
        "mostly an illegal access in a kernel: --env CUDA_LAUNCH_BLOCKING=1 has the traceback point at it",
        r"a program made an error on the GPU at \1 (Xid \2)",
        words=_GPU,
    ),
    Hint(
        r"nvidia-nvswitch.*SXid",
        "restart nvidia-fabricmanager on {host}, or reboot it",
        "the NVSwitch failed (SXid)",
        words=_GPU,
        unfit=True,
    ),
    Hint(
        r"amdgpu .*(reset|timeout|uncorrect\w*)",
        "reset it (rocm-smi) or reboot {host}",
        r"an AMD GPU failed (\1)",
        words=_GPU,
        unfit=True,
    ),
    Hint(
        r"[Hh]ardware [Ee]rror(?!.*\b[Cc]orrected)|Uncorrect",
        "memory or processor of {host}: see its machine check log (ras-mc-ctl, mcelog)",
        "the hardware reports an error that cannot be corrected",
        signals=(SIGBUS, SIGKILL, SIGSEGV),
        words=r"Bus error",
        unfit=True,
    ),
    Hint(
        r"(?:segfault at|general protection|traps: ).*? in ([^\s\[]+)",
        "--env PYTHONFAULTHANDLER=1 shows where in the script; is that library the same on all hosts ('fleet check')?",
        r"a crash in native code, in \1",
        signals=(SIGSEGV, SIGBUS, SIGILL, SIGFPE),
        words=_LOST_A_CHILD,
        sudden=True,
    ),
    Hint(
        r"I/O error|(?:EXT4-fs|BTRFS).*error|XFS .*(?:[Cc]orrupt|[Ss]hut)|[Rr]emounting filesystem read-only",
        "'fleet exec -w {host} -- dmesg' tells which; replace it before the next run",
        "a disk there fails",
        signals=(SIGBUS,),
        words=_DISK,
        unfit=True,
    ),
    Hint(
        r"nfs: server (\S+) not responding",
        "look at that server, or at the link of {host} to it",
        r"the file server \1 did not answer",
        words=_DISK + r"|Errno 110|timed out",
    ),
)


def explains(line: KernelLine, signal: int, text: str) -> Hint | None:
    """Returns the rule by which a line explains the end of a process. line: its time counts from that end, its rank is
    the process's own, or None. signal: that ended it, 0 for none. text: the end of what it wrote."""
    rule, mine = first_match(KERNEL, line["text"]), line["rank"] is not None
    if rule is None or (rule.sudden and not mine and abs(line["time"]) > SUDDEN_SECONDS):
        return None
    return rule if mine or signal in rule.signals or re.search(rule.words, text) else None
