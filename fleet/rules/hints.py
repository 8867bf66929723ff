"""What a failed rank's last lines mean and what to do about it: a table, first match wins.

A rule is (pattern on the tail of stderr, remedy). \\1 in a remedy is the pattern's first group. `collateral`
marks the errors that a rank shows because another one died: such a rank is not the first failure's cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fleet.rules.tracebacks import last_of

TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Hint:
    """One rule. pattern: a regular expression, searched in the text with MULTILINE."""

    pattern: str
    remedy: str
    collateral: bool = False


HINTS = (
    Hint(
        r"No module named '?(deepspeed|torch)\b",
        r"\1 is not in the interpreter that ran: set 'python' in the inventory, or --python; 'fleet check' compares",
    ),
    Hint(
        r"No module named '?([\w.]+)'?",
        r"\1 is missing there: 'fleet sync --wheels' installs it everywhere, 'fleet sync' brings your own code",
    ),
    Hint(
        r"EADDRINUSE|Address already in use|address already in use",
        "a port is taken there: 'fleet kill-port PORT' shows by whom; --master-port auto finds a free one",
    ),
    Hint(
        r"CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED",
        "GPU memory ran out: a smaller batch, activation checkpointing or a higher ZeRO stage; "
        "'fleet exec -- nvidia-smi' shows who else uses it",
    ),
    Hint(
        r"DefaultCPUAllocator: can't allocate|MemoryError|std::bad_alloc|Cannot allocate memory",
        "the node's memory ran out: a smaller batch, fewer data loader workers",
    ),
    Hint(
        r"No space left on device.*shm|unable to open shared memory|DataLoader worker .* is killed by signal: Bus",
        "/dev/shm is full: give it more room on the node, or fewer data loader workers",
    ),
    Hint(r"No space left on device|ENOSPC", "a disk is full there: 'fleet exec -- df -h'"),
    Hint(
        r"invalid device ordinal|CUDA_VISIBLE_DEVICES|no CUDA-capable device",
        "more ranks than GPUs on that node: set 'slots', or --nproc-per-node gpu",
    ),
    Hint(
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "the driver is older than this torch's CUDA: 'fleet check' compares the two on every node",
    ),
    Hint(
        r"no kernel image is available for execution",
        "torch was not built for that GPU: install a build for its compute capability",
    ),
    Hint(
        r"(?:FileNotFoundError|No such file or directory|Expected a string path).*(ds_?config[\w./-]*)",
        r"\1 is not there: paths are relative to the workdir; 'fleet launch --sync' brings the current folder",
    ),
    Hint(
        r"DeepSpeed requires --deepspeed_config|deepspeed_config.*(?:required|not specified)",
        "the script got no DeepSpeed configuration: add --deepspeed_config FILE behind the script",
    ),
    Hint(
        r"Unable to find address for: (\S+)|Unable to find interface|ifa != nullptr|invalid interface name",
        "gloo found no such network interface: leave GLOO_SOCKET_IFNAME unset, fleet sets it per node",
    ),
    Hint(
        r"NCCL.*(?:no socket interface found|Bootstrap : no socket interface)",
        "NCCL found no such network interface: leave NCCL_SOCKET_IFNAME unset, fleet sets it per node",
    ),
    Hint(
        r"Connection closed by peer|Connection reset by peer|Broken pipe.*(?:store|TCPStore)|"
        r"NCCL.*remote process exited|recvValue failed|failed to recv|DistNetworkError.*reset",
        "another rank went away first; its own log says why",
        collateral=True,
    ),
    Hint(
        r"ncclSystemError|NCCL.*(?:connect|Connect).*(?:refused|timed out|No route)|unhandled system error",
        "NCCL could not connect: a firewall between the data addresses? --env NCCL_DEBUG=INFO says more",
    ),
    Hint(
        r"client socket has (?:failed|timed)|DistNetworkError|connectFullMesh|Connect timeout|"
        r"timed out after .* waiting for clients",
        "ranks could not reach each other: a firewall between the data addresses, or data_address to be set?",
    ),
    Hint(
        r"(/\S*torch_extensions/\S+)/\w+\.so: cannot open shared object file",
        r"the build in \1 was cut short: 'fleet exec -- rm -rf \1' has it built anew",
    ),
    Hint(
        r"unrecognized arguments: (--local[-_]rank=\d+)",
        r"the script does not know \1: read LOCAL_RANK from the environment, or --engine-arg=--no_local_rank",
    ),
    Hint(
        r"unrecognized arguments: (.*)",
        r"the script does not know '\1': options of fleet stand in front of SCRIPT, the script's own behind it",
    ),
    Hint(r"can't open file '([^']*)'", r"\1 is not on that node: 'fleet launch --sync' brings the current folder"),
    Hint(r"Permission denied", "the user there may not do that: check owner and mode of the path named above"),
    Hint(
        r"(?:version `|libstdc\+\+.*)(GLIBC(?:XX)?_[\d.]+)'? not found",
        r"a library there is older than \1: set 'activate' in the inventory to bring the right one, or rebuild",
    ),
)


def hint_for(text: str) -> Hint | None:
    """The first rule that the last traceback matches, or else the text without its warnings; remedy filled in."""
    trace = last_of(text)
    plain = "\n".join(line for line in text.splitlines() if not _WARNING.match(line))
    return (trace and first_match(HINTS, trace)) or first_match(HINTS, plain)


_WARNING = re.compile(r"(\[rank\d+\]:)?\[W\d|.*\bWARNING\b|.*Warning: ")  # torch's, logging's, warnings'


def first_match(hints: Iterable[Hint], text: str) -> Hint | None:
    for hint in hints:
        found = re.search(hint.pattern, text, re.MULTILINE)
        if found:
            return Hint(hint.pattern, found.expand(hint.remedy), hint.collateral)
    return None
