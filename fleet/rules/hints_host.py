"""Holds hints about hosts: missing or broken packages, ports, devices, memory, disk space."""

from __future__ import annotations

from fleet.rules.hint import Hint
from fleet.rules.signals import KILLED

OUT_OF_MEMORY = r"(?:CUDA out of memory|CUDA error: out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED)"
LESS_MEMORY = (
    "a smaller batch, activation checkpointing or a higher ZeRO stage; 'fleet exec -- nvidia-smi' shows who else uses "
    "it"
)
BY_TORCH = r"[\s\S]*raised in .*/torch/distributed/"
# fleet sets these variables for each rank; --env would give all ranks the same value
NOT_OF_RANKS = r"(?!(?:(?:LOCAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT))')"

HOST_HINTS = (
    Hint(
        r"Torch not compiled with CUDA|not compiled with CUDA (?:enabled|support)|'torch\._C' has no attribute '_cuda",
        "the torch there is built without CUDA: 'fleet check' shows every host's build; install one with CUDA, or have "
        "the script train on CPUs",
    ),
    Hint(
        r"doesn't have NCCL built in|NCCL support is not compiled",
        "the torch there is built without NCCL, mostly for CPUs: 'fleet check' shows every host's build; install one "
        "with CUDA, or use gloo in init_process_group",
    ),
    Hint(
        r"(lib(?:cuda|cudart|cublas\w*|cudnn\w*|cufft|curand|cusparse\w*|cusolver|nccl|nvrtc|nvJitLink)\.so[\w.]*)"
        r": cannot open shared object",
        r"\1 is not found there: a package that was built for another CUDA than torch? 'fleet check' shows torch's; "
        "install one for it, or have 'activate' set LD_LIBRARY_PATH",
    ),
    Hint(
        r"No module named '[\w.]+'; '(\w+)' is not a package|partially initialized module '(\w+)'.*circular import",
        r"a file \g<1>\g<2>.py next to the script, or in the workdir, hides the package \g<1>\g<2>: rename it",
    ),
    Hint(
        r"cannot import name '(\w+)' from '([\w.]+)' \((/\S+)\)",
        r"\3 has no \1: another version than the script, or a package, was written for; 'fleet exec -- sha256sum \3' "
        "shows which hosts have another",
    ),
    Hint(
        r"module '(torch|numpy|transformers|deepspeed|accelerate|datasets)' has no attribute '(\w+)'",
        r"the \1 there has no \2: another version than the script, or a package, was written for ('fleet check' "
        r"compares), or a folder \1 beside the script hides it",
    ),
    Hint(
        r"No working C\+\+ compiler found|Failed to find C compiler",
        "torch.compile finds no compiler there: 'fleet exec -- g++ --version' shows who has one; install it, or set CC "
        "and CXX by --env",
    ),
    Hint(
        r"No module named '?(deepspeed|torch)(?=['\s]|$)",
        r"\1 is not in the interpreter that ran: set 'python' in the inventory, or --python; 'fleet check' compares",
    ),
    Hint(
        r"No module named '?((deepspeed|torch)\.[\w.]+)'?",
        r"the \2 there has no \1: the script, or a package, was written for another version; 'fleet check' compares",
    ),
    Hint(
        r"No module named '?([\w.]+)'?",
        r"\1 is missing there: 'fleet sync --wheels FILE' installs what FILE names everywhere, 'fleet sync' brings "
        "your own code",
    ),
    Hint(
        rf"port: (\d+)\b.*EADDRINUSE{BY_TORCH}",
        "port \\1 is taken there, by an earlier run of yours? 'fleet kill-port \\1' shows by which process, and "
        "ends it; --master-port auto finds a free one",
    ),
    Hint(
        rf"(?:EADDRINUSE|[Aa]ddress already in use){BY_TORCH}",
        "the master's port is taken there: 'fleet kill-port PORT' shows by which process; "
        "--master-port auto finds a free one",
    ),
    Hint(
        r"(?:port: |bind on address \('[^']*', )(\d+)\b[\s\S]*(?:EADDRINUSE|address already in use)",
        r"port \1 is taken there: 'fleet kill-port \1' shows by which process; a server of the script's own may "
        "listen there once a node (LOCAL_RANK 0)",
    ),
    Hint(
        r"EADDRINUSE|[Aa]ddress already in use",
        "a port is taken there: 'fleet kill-port PORT' shows by which process; a server of the script's own may "
        "listen there once a node (LOCAL_RANK 0)",
    ),
    Hint(
        rf"{OUT_OF_MEMORY}.*?Process (\d+) has ([\d.]+ [GM]iB) memory in use",
        rf"GPU memory ran out; process \1 holds \2 of it: {LESS_MEMORY}",
    ),
    Hint(OUT_OF_MEMORY, f"GPU memory ran out: {LESS_MEMORY}"),
    Hint(
        r"uncorrectable ECC error|cudaErrorECCUncorrectable",
        "a GPU there has broken memory, 'fleet check' counts its errors: leave the host out; reset or replace the GPU",
        unfit=True,
    ),
    Hint(
        r"Error 802: system not yet initialized|nvidia-fabricmanager",
        "the NVSwitches of that host are not up: 'systemctl restart nvidia-fabricmanager' there, the driver's version",
        unfit=True,
    ),
    Hint(
        r"CUDA error: (?:device-side assert triggered|an illegal memory access|unspecified launch failure)",
        "a kernel went wrong, mostly an index out of range; the traceback may point elsewhere: "
        "--env CUDA_LAUNCH_BLOCKING=1 has it point at it",
    ),
    Hint(
        r"ibv_(?:reg_mr|create_qp|create_cq)\w* failed",
        "InfiniBand may not lock memory there: set 'memlock unlimited' in /etc/security/limits.conf, log in again",
    ),
    Hint(
        r"NET/IB ?: Got (?:completion|async event).*(?:error |status=)\(?12\b",
        "an InfiniBand packet was never answered: a cable, port or subnet? 'fleet check' shows ports that are down",
    ),
    Hint(
        r"No space left on device.*shm|unable to (?:open|write to|allocate) shared memory|insufficient shared memory|"
        r"DataLoader worker .* is killed by signal: Bus|shared memory segment|/dev/shm/nccl",
        "/dev/shm is full or small: give it more room on the node ('fleet exec -- df -h /dev/shm'), or fewer data "
        "loader workers",
    ),
    Hint(
        r"DataLoader worker .* is killed by signal: (?:Segmentation|Abort|Illegal|Floating)",
        "a data loader's worker crashed in native code, a decoder's or an augmentation's: PYTHONFAULTHANDLER=1 (--env) "
        "or num_workers=0 shows where",
    ),
    Hint(
        r"DataLoader worker .* is killed by signal: Killed",
        f"a data loader's worker was {KILLED}",
    ),
    Hint(
        r"DataLoader worker .* exited unexpectedly",
        "a data loader's worker ended: what it wrote before says why; num_workers=0 shows an error of its own, "
        "'fleet exec -- df -h /dev/shm' and 'free -h' whether room ran out",
    ),
    Hint(
        r"BrokenProcessPool: A (?:process in the process pool|child process)",
        "a process of the pool was killed, or crashed: PYTHONFAULTHANDLER=1 (--env) shows a crash, 'fleet exec -w "
        "{host} -- dmesg' whether the kernel killed it for want of memory",
    ),
    Hint(
        rf"^KeyError: '{NOT_OF_RANKS}(\w+)'\nraised in (?:<frozen os>|.*/os\.py)$|"
        rf"Environment variable '{NOT_OF_RANKS}(\w+)' not found",
        r"the variable \g<1>\g<2> is not set there: --env \g<1>\g<2> sends this machine's, --env-file "
        "FILE those of a file",
    ),
    Hint(
        r"Too many open files|received 0 items of ancdata",
        "too many open files: raise 'nofile' in /etc/security/limits.conf there, or have the script call "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    Hint(
        r"can't start new thread|(?:fork|clone|thread|spawn)\w*\b[^\n]{0,200}: Resource temporarily unavailable|"
        r"Resource temporarily unavailable\nraised in \S*(?:popen_\w+|forkserver|subprocess|pty)\.py",
        "no more processes or threads may be started there: 'fleet exec -- cat /proc/self/limits' shows the limit "
        "(ulimit -u), a container has one of its own (pids.max)",
    ),
    Hint(
        r"DefaultCPUAllocator: can't allocate|MemoryError|std::bad_alloc|Cannot allocate memory",
        "memory was refused: a limit (ulimit -v), or more at once than the node has; 'fleet exec -- cat "
        "/proc/self/limits' shows the one, 'fleet exec -- free -h' the other",
    ),
    Hint(
        r"\[Errno 27\]|File too large",
        "a file reached the limit of its size: 'fleet exec -- cat /proc/self/limits' shows it (ulimit -f)",
    ),
    Hint(r"No space left on device|ENOSPC", "a disk is full there: 'fleet exec -- df -h'"),
)
