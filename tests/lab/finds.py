"""Writes all that a rank finds to found-<RANK>.json in its working folder: a flat object of names and values."""

import ctypes
import fcntl
import json
import os
import resource
import signal
import stat
import sys

KINDS = {"file": stat.S_ISREG, "pipe": stat.S_ISFIFO, "device": stat.S_ISCHR, "socket": stat.S_ISSOCK}
OF_PROC = [
    *("SigBlk", "SigIgn", "SigCgt", "SigPnd", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Groups", "Uid", "Gid"),
    *("Cpus_allowed", "Mems_allowed"),
]
PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_GET_TIMERSLACK, IOPRIO_GET = 2, 3, 30, 252


def kind(fd: int) -> str:
    mode = os.fstat(fd).st_mode
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    marks = [name for name in ("O_APPEND", "O_NONBLOCK") if flags & getattr(os, name)]
    return " ".join([*(name for name, is_one in KINDS.items() if is_one(mode)), *marks, "tty" * os.isatty(fd)])


def of_proc() -> dict[str, str]:
    status = dict(line.split(":", 1) for line in read("status").splitlines())
    return {name: status[name].strip() for name in OF_PROC}


def read(name: str) -> str:
    with open("/proc/self/" + name) as f:
        return f.read().strip()


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    ends_with = ctypes.c_int()
    libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(ends_with))
    found = {
        "argv": sys.argv,
        "sys.path": sys.path,
        "sys.executable": sys.executable,
        "sys.flags": str(sys.flags),
        "sys.stdout": [getattr(sys.stdout, name) for name in ("encoding", "errors", "line_buffering", "write_through")],
        "modules": sorted(sys.modules),
        "cmdline": read("cmdline").split("\0"),
        "cwd": os.getcwd(),
        "umask": os.umask(0o22),
        "nice": os.nice(0),
        "ionice": libc.syscall(IOPRIO_GET, 1, 0),
        "scheduler": os.sched_getscheduler(0),
        "oom_score_adj": read("oom_score_adj"),
        "coredump_filter": read("coredump_filter"),
        "personality": read("personality"),
        "cgroup": read("cgroup"),
        "dumpable": libc.prctl(PR_GET_DUMPABLE),
        "timer slack": libc.prctl(PR_GET_TIMERSLACK),
        "signal at the parent's death": ends_with.value,
        "leads its session": os.getsid(0) == os.getpid(),
        "leads its process group": os.getpgrp() == os.getpid(),
        "terminal": read("stat").rpartition(")")[2].split()[4],
        "stdin": kind(0),
        "stdout": kind(1),
        "stderr": kind(2),
        "inherited": sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and is_inherited(fd)),
        **of_proc(),
        **{"handler " + s.name: str(signal.getsignal(s)) for s in signal.Signals},
        **{name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")},
        **{"$" + name: value for name, value in os.environ.items()},
    }
    with open(f"found-{os.environ.get('RANK', 0)}.json", "w") as f:
        json.dump(found, f)


def is_inherited(fd: int) -> bool:
    """What it opened itself is not handed on, and neither is what lists them."""
    try:
        return not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    except OSError:
        return False


main()
