"""The parity rules, as data: which fact, what must hold of it, how bad it is otherwise, and what to do then.

`fact` is a dotted path into a host's view (rules/view.py). Adding a rule is adding an entry here and a case in
tests/golden/check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]
Kind = Literal["equal", "minimum", "maximum", "clear", "somewhere", "distinct"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Rule:
    """One thing that must hold.

    kind: "equal": the same on all hosts. "minimum", "maximum": at least, at most the limit; `levels` are
    (limit, severity), the worst first, and `unit` is "bytes", "s" or "". "clear": the fact, a text that says what is
    wrong, must be empty. "somewhere": at least one host has it. "distinct": no two hosts share it.
    what: what the fact is called in the message. when: a fact that must be true for the rule to apply to a host.
    needs: "python", or a module of it: where it is known what is to run, an error if that needs it, else a warning.
    A host that lacks the fact because its probe step timed out is not judged.
    """

    id: str
    fact: str
    kind: Kind
    what: str
    remedy: str
    severity: Severity = "error"
    levels: tuple[tuple[float, Severity], ...] = ()
    unit: Literal["bytes", "s", ""] = ""
    when: str | None = None
    needs: str | None = None


LOOK = "look at dmesg there"
SAME_WHEEL = "install the same version into every host's training interpreter"
SAME_IMAGE = "bring the hosts to the same system release, or build in a container"

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

RULES: tuple[Rule, ...] = (
    # -- the training interpreter and what is in it
    Rule(
        "activate",
        "problems.activate",
        "clear",
        "the activate line",
        "run the inventory's 'activate' line by hand there: ssh HOST, then bash",
    ),
    Rule(
        "python-missing",
        "problems.python",
        "clear",
        "the training interpreter",
        "install it there, or correct 'python' (or 'activate') of this host in the inventory",
        needs="python",
    ),
    Rule(
        "module-missing",
        "problems.modules",
        "clear",
        "needed for a run",
        "install it there: fleet sync --wheels requirements.txt; or set 'python' to the interpreter that has it",
    ),
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
    ),
    Rule("deepspeed-version", "deepspeed.version", "equal", "deepspeed", SAME_WHEEL, "warning", needs="deepspeed"),
    Rule(
        "deepspeed-ops",
        "deepspeed_ops",
        "equal",
        "deepspeed with the compiled ops",
        "build one wheel and install it everywhere; a missing op is compiled at the first step, on that host alone",
        "warning",
    ),
    Rule("accelerate-version", "versions.accelerate", "equal", "accelerate", SAME_WHEEL, "warning"),
    Rule("transformers-version", "versions.transformers", "equal", "transformers", SAME_WHEEL, "warning"),
    Rule("numpy-version", "versions.numpy", "equal", "numpy", SAME_WHEEL, "warning"),
    # -- GPUs
    Rule(
        "arch",
        "arch",
        "equal",
        "architecture",
        "launch on hosts of one architecture: narrow the selection with -w or -x",
    ),
    Rule(
        "gpu-driver-missing",
        "problems.driverless",
        "clear",
        "the NVIDIA driver",
        "install the NVIDIA driver that the other hosts have, then reboot or load the module",
    ),
    Rule(
        "gpu-unusable",
        "gpu_error",
        "clear",
        "nvidia-smi",
        "a driver/library version mismatch goes away with a reboot; for the rest see 'dmesg | grep -i xid'",
    ),
    Rule(
        "gpu-slots",
        "problems.slots",
        "clear",
        "GPUs",
        "lower 'slots' of this host in the inventory, or look for the GPU that fell off the bus (nvidia-smi -L)",
    ),
    Rule(
        "gpu-count",
        "gpu.count",
        "equal",
        "GPU count",
        "give each host its own 'slots' in the inventory; nvidia-smi -L shows what is there",
        "warning",
    ),
    Rule(
        "gpu-model",
        "gpu.model",
        "equal",
        "GPU model",
        "a step takes as long as on the slowest GPU: group equal hosts and select them with -w @group",
        "warning",
    ),
    Rule(
        "gpu-ecc",
        "problems.ecc",
        "clear",
        "GPU memory errors",
        "reset or replace that GPU: uncorrected errors end a run or spoil its results",
        "warning",
    ),
    Rule(
        "gpu-busy",
        "problems.busy",
        "clear",
        "GPUs in use",
        "wait for it, end it, or choose other devices (-w HOST:2,3)",
    ),
    Rule("driver-version", "driver", "equal", "NVIDIA driver", "install the same driver on every host", "warning"),
    Rule(
        "driver-old",
        "problems.old_driver",
        "clear",
        "NVIDIA driver",
        "update the driver, or install a torch built for an older CUDA",
        "warning",
    ),
    Rule(
        "cuda-toolkit",
        "cuda_toolkit",
        "equal",
        "CUDA toolkit",
        "needed only to compile ops: build wheels on one host, or install the same toolkit",
        "warning",
    ),
    Rule(
        "nccl-library",
        "nccl_library",
        "equal",
        "system NCCL",
        "torch from a wheel brings its own; else install the same libnccl on every host",
        "warning",
    ),
    # -- the system
    Rule(
        "glibc",
        "glibc",
        "equal",
        "glibc",
        SAME_IMAGE + "; wheels built on the newer one do not load on the older",
        "warning",
    ),
    Rule("os", "os", "equal", "system", SAME_IMAGE, "info"),
    Rule("kernel", "kernel", "equal", "kernel", "update and reboot to the same kernel", "warning"),
    Rule(
        "gcc",
        "compilers.gcc",
        "equal",
        "gcc",
        "ops compiled on the fly differ: install the same gcc, or name it in 'activate' (devtoolset)",
        "warning",
    ),
    Rule("ninja", "compilers.ninja", "equal", "ninja", "pip install ninja: torch compiles extensions with it", "info"),
    Rule("cpu-model", "cpu.model", "equal", "CPU", "fine, but the slowest host sets the pace", "info"),
    Rule(
        "cpu-count", "cpu.usable", "equal", "usable CPU count", "set the number of data loader workers by host", "info"
    ),
    Rule(
        "hugepages",
        "transparent_hugepages",
        "equal",
        "transparent huge pages",
        "set /sys/kernel/mm/transparent_hugepage/enabled the same everywhere",
        "info",
    ),
    Rule(
        "hostname",
        "hostname",
        "distinct",
        "hostname",
        "set a hostname of its own on each (hostnamectl): NCCL takes hosts of one name for one machine",
        "warning",
    ),
    Rule(
        "rsync-missing",
        "problems.rsync",
        "clear",
        "rsync",
        "install rsync: with it 'fleet sync' sends only what has changed in large files",
        "info",
    ),
    # -- room and limits
    Rule(
        "disk-workdir",
        "disks.workdir.free",
        "minimum",
        "free in the workdir",
        "make room there, or set another 'workdir' in the inventory",
        levels=((64 * MiB, "error"), (10 * GiB, "warning")),
        unit="bytes",
    ),
    Rule(
        "workdir-writable",
        "problems.workdir",
        "clear",
        "the workdir",
        "change its owner, or set another 'workdir' in the inventory",
        "warning",
    ),
    Rule(
        "disk-home",
        "disks.home.free",
        "minimum",
        "free in the home folder",
        "make room there: fleet keeps a run's logs in ~/.fleet",
        levels=((64 * MiB, "error"), (1 * GiB, "warning")),
        unit="bytes",
    ),
    Rule(
        "disk-tmp",
        "disks.tmp.free",
        "minimum",
        "free in /tmp",
        "make room there, or set TMPDIR in the inventory's 'env'",
        levels=((256 * MiB, "warning"),),
        unit="bytes",
    ),
    Rule(
        "shm-size",
        "disks.shm.total",
        "minimum",
        "in /dev/shm",
        "mount -o remount,size=50% /dev/shm: data loader workers and NCCL share memory there",
        levels=((1 * GiB, "warning"),),
        unit="bytes",
        when="several_ranks",
    ),
    Rule(
        "memory",
        "memory.available",
        "minimum",
        "memory available",
        "something else fills the memory there: see 'ps aux --sort=-rss | head'",
        levels=((1 * GiB, "warning"),),
        unit="bytes",
    ),
    Rule(
        "swap",
        "memory.swap_used",
        "maximum",
        "of swap in use",
        "training that swaps crawls: free memory, then swapoff -a && swapon -a",
        levels=((4 * GiB, "info"),),
        unit="bytes",
    ),
    Rule(
        "open-files",
        "limits.nofile",
        "minimum",
        "open files allowed",
        "raise 'nofile' in /etc/security/limits.conf: data loaders end with 'Too many open files'",
        levels=((1024, "warning"), (4096, "info")),
    ),
    Rule(
        "memlock",
        "limits.memlock",
        "minimum",
        "of memory that may be locked",
        "set 'memlock unlimited' in /etc/security/limits.conf: RDMA registers memory by locking it",
        levels=((float("inf"), "warning"),),
        unit="bytes",
        when="infiniband_ports",
    ),
    # -- network and time
    Rule("link-mtu", "link.mtu", "equal", "link MTU", "set the same MTU on every host and on the switch", "warning"),
    Rule(
        "link-speed",
        "link.speed",
        "equal",
        "link speed (Mbit/s)",
        "the slowest link sets the pace: look at the cable and the switch port",
        "warning",
    ),
    Rule(
        "infiniband",
        "infiniband_ports",
        "equal",
        "active InfiniBand ports",
        "see ibstat there: a port that is down sends traffic over TCP, or nowhere",
        "warning",
    ),
    Rule(
        "clock",
        "clock.skew",
        "maximum",
        "between its clock and the head's",
        "start a time service there (chrony, systemd-timesyncd)",
        levels=((1.0, "warning"),),
        unit="s",
    ),
    # -- the probe itself
    Rule("step-needed", "problems.broken", "clear", "the probe", "look at what it names on that host"),
    Rule("step-failed", "problems.failed", "clear", "the probe", "look at what it names on that host", "warning"),
    *(
        Rule(f"hangs-{step.replace(' ', '-')}", f"hangs.{step}", "clear", step, remedy, severity)
        for step, severity, remedy in HANGS
    ),
)

# NVIDIA's "minor version compatibility": the oldest Linux driver for a CUDA major version.
OLDEST_DRIVER = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}
