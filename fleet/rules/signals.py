"""Names signals, and explains a process's death by one. Pure. The numbers are those of Linux, even if the head has
another system."""

from __future__ import annotations

from fleet.protocol.codes import name_of

SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV = 7, 8, 4, 9, 11
CRASHES = (SIGILL, 5, 6, SIGBUS, SIGFPE, SIGSEGV, 31)  # signals that a process mostly causes itself
_NATIVE = "a crash in native code", "a crash in native code: PYTHONFAULTHANDLER=1 (--env) shows where"
_NOTICE = (
    "a notice, mostly of preemption or of a time limit that nears, which the script does not handle",
    "a batch system sends it before preemption or a time limit (Slurm: --signal): have the script save and end, or "
    "give it no such notice",
)
_SHOWN = "'fleet exec -w {host} -- cat /proc/self/limits' shows it"
NOT_FOR_MEMORY = "killed by SIGKILL, and not by the kernel for want of memory"
BY_HAND = "a 'kill -9' or 'pkill' there? 'fleet exec -w {host} -- last -x' may say who was on it"
KILLED = "killed from outside: 'fleet exec -w {host} -- dmesg' shows whether the kernel did it for want of memory"
# signal -> (its meaning, the remedy), if a process died of it
_MEANINGS = {
    "SIGKILL": (None, KILLED),
    "SIGHUP": ("the session that it belonged to has ended", None),
    "SIGILL": ("an instruction that this processor does not have", "was it built for another processor? 'fleet check'"),
    "SIGABRT": ("native code gave up", "PYTHONFAULTHANDLER=1 (--env) shows where"),
    "SIGBUS": _NATIVE,
    "SIGFPE": ("a division by zero in native code", "PYTHONFAULTHANDLER=1 (--env) shows where"),
    "SIGSEGV": _NATIVE,
    "SIGUSR1": _NOTICE,
    "SIGUSR2": _NOTICE,
    "SIGALRM": ("an alarm that the script had set, and does not handle", None),
    "SIGXCPU": (
        "the limit of CPU time is used up",
        f"{_SHOWN} (ulimit -t); /etc/security/limits.conf or the queue sets it",
    ),
    "SIGXFSZ": (
        "a file reached the limit of its size",
        f"{_SHOWN} (ulimit -f); /etc/security/limits.conf or the queue sets it",
    ),
    "SIGSYS": ("a system call that is forbidden there", "a sandbox or a container (seccomp) forbids it"),
}


def signal_of(status: int | None) -> int:
    """Returns the signal that an exit code stands for, 0 for none."""
    return status - 128 if status is not None and 128 < status <= 128 + 64 else 0


def signalled(signal: int, kernel_known: bool) -> tuple[str | None, str | None]:
    """Returns (why, remedy) for a signal that nothing else explains. kernel_known: the kernel's log was read, and shows
    no cause."""
    if signal == SIGKILL and kernel_known:
        return NOT_FOR_MEMORY, BY_HAND
    name = name_of(signal)
    meaning, remedy = _MEANINGS.get(name, (None, None))
    return meaning and f"{name}: {meaning}", remedy
