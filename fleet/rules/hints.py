"""What a failed rank's last lines mean and what to do about it: a table, first match wins.

A rule is (pattern on the tail of stderr, remedy). \\1 in a remedy is the pattern's first group. `collateral`
marks the errors that a rank shows because another one died: such a rank is not the first failure's cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fleet.rules.tracebacks import last_of
from fleet.rules.worked_out import GONE, NO_CHECKPOINT, batch_sizes, gpu_memory, lament, no_checkpoint, not_joined

TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Hint:
    """One rule. pattern: a regular expression, searched in the text with MULTILINE. worked_out: makes the remedy of
    the match, where it is not always the same. unfit: the host is not fit for another run as it is."""

    pattern: str
    remedy: str
    collateral: bool = False
    worked_out: Callable[[re.Match[str]], str] | None = None
    unfit: bool = False


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
        r"port: (\d+)\b.*EADDRINUSE",
        "port \\1 is taken there, by an earlier run of yours? 'fleet kill-port \\1' shows by whom, and ends it; "
        "--master-port auto finds a free one",
    ),
    Hint(
        r"EADDRINUSE|Address already in use|address already in use",
        "a port is taken there: 'fleet kill-port PORT' shows by whom; --master-port auto finds a free one",
    ),
    Hint(
        r"(?:CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED)"
        r"(?:.*?Process (\d+) has ([\d.]+ [GM]iB) memory in use)?",
        "GPU memory ran out",
        worked_out=gpu_memory,
    ),
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
        "InfiniBand may not lock memory there: set 'memlock unlimited' in /etc/security/limits.conf, log in anew",
    ),
    Hint(
        r"NET/IB ?: Got (?:completion|async event).*(?:error |status=)\(?12\b",
        "an InfiniBand packet was never answered: a cable, port or subnet? 'fleet check' shows ports that are down",
    ),
    Hint(
        r"DataLoader worker .* is killed by signal: Killed|DataLoader worker .* exited unexpectedly",
        "a data loader's worker was killed, mostly as the node's memory ran out: fewer of them, or a smaller batch",
    ),
    Hint(
        r"Too many open files|received 0 items of ancdata",
        "too many open files: raise 'nofile' in /etc/security/limits.conf there, or have the script call "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    Hint(
        r"DefaultCPUAllocator: can't allocate|MemoryError|std::bad_alloc|Cannot allocate memory",
        "the node's memory ran out: a smaller batch, fewer data loader workers",
    ),
    Hint(
        r"No space left on device.*shm|unable to (?:open|write to|allocate) shared memory|insufficient shared memory|"
        r"DataLoader worker .* is killed by signal: Bus",
        "/dev/shm is full: give it more room on the node, or fewer data loader workers",
    ),
    Hint(r"No space left on device|ENOSPC", "a disk is full there: 'fleet exec -- df -h'"),
    Hint(
        r"PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos|Disk quota exceeded",
        "a file could not be written to its end: a full disk, or a quota? 'fleet exec -- df -h' shows room",
    ),
    Hint(
        r"PytorchStreamReader failed (?:reading zip archive|locating file)|invalid load key, |Ran out of input",
        "that checkpoint was cut short, by a run that ended while it was written: take an earlier one, and have the "
        "script write to another name first, then os.replace",
    ),
    Hint(
        r"couldn't connect to 'https://huggingface\.co|LocalEntryNotFoundError|"
        r"Max retries exceeded with url.*huggingface|Failed to (?:connect to|resolve) '?huggingface",
        "that node does not reach huggingface.co: fetch it here, bring it by 'fleet sync --data "
        "~/.cache/huggingface:~/.cache/', and give --env HF_HUB_OFFLINE=1",
    ),
    Hint(
        r"(?i)\bloss\b.{0,20}?(?:\b(?:is|are|was|became) (?:nan|inf)\b|[=:] *nan\b)|non-finite loss|"
        r"FloatingPointError|Minimum loss scale reached|loss scale already at minimum",
        "the loss left the range of numbers: a lower learning rate, warm-up, clipped gradients, bf16 for fp16",
    ),
    Hint(
        r"Detected mismatch between collectives on ranks\. Rank (\d+) is running (?:inconsistent )?collective: "
        r"CollectiveFingerPrint\((?:[^()]*?)OpType=(\w+)(?:.|\n)*?but Rank (\d+) is running collective: "
        r"CollectiveFingerPrint\((?:[^()]*?)OpType=(\w+)",
        r"rank \1 is in \2, rank \3 in \4: they take different ways through the script, or differ in shapes; "
        r"look for a collective behind an 'if rank'",
    ),
    Hint(
        r"Mismatched collective detected.* around rank (\d+)",
        r"ranks call different collectives, or of other sizes, around rank \1: "
        r"--env TORCH_DISTRIBUTED_DEBUG=DETAIL has torch compare them",
    ),
    Hint(
        r"waiting for clients\. (\d+)/(\d+) clients joined",
        "not all ranks came to the master",
        worked_out=not_joined,
    ),
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
    Hint(NO_CHECKPOINT, "a checkpoint is not on that node", worked_out=no_checkpoint),
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
        r"train_batch_size is not equal to micro_batch_per_gpu \* gradient_acc_step \* world_size "
        r"(\d+) != (\d+) \* (\d+) \* (\d+)",
        "sizes that fit the number of ranks",
        worked_out=batch_sizes,
    ),
    Hint(
        r"Micro batch size per gpu: 0 has to be greater than 0",
        "train_batch_size is smaller than the number of ranks: a larger one, or --nproc-per-node for fewer ranks",
    ),
    Hint(
        r"stage3_gather_16bit_weights_on_model_save|zero3_save_16bit_model",
        "under ZeRO-3 each rank has a part of the weights: zero3_save_16bit_model: true in accelerate's configuration "
        "(DeepSpeed: stage3_gather_16bit_weights_on_model_save), and call get_state_dict and save on every rank",
    ),
    Hint(
        r"size mismatch for .*torch\.Size\(\[0\]\)",
        "these weights were saved under ZeRO-3, by a rank that had a part of them: save with zero3_save_16bit_model "
        "(stage3_gather_16bit_weights_on_model_save) true, or make one file of a checkpoint with its zero_to_fp32.py",
    ),
    Hint(
        r"(?:No such file or directory|FileNotFoundError).*numactl|numactl: (?:command )?not found",
        "numactl is missing there: install it, or leave --bind-cores-to-rank away",
    ),
    Hint(
        r"Connection closed by peer|Connection reset by peer|Broken pipe.*(?:store|TCPStore)|"
        r"NCCL.*remote process exited|recvValue failed|failed to recv|DistNetworkError.*reset|"
        r"Connection closed by remote peer|SignalException: Process \d+ got signal: 15|"
        r"(?P<first>retrieving ncclUniqueId from \[0\])|Ranks? (?P<missing>[\d, ]+) failed to pass monitoredBarrier|"
        r"(?P<waited>Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send) operation)",
        GONE,
        collateral=True,
        worked_out=lament,
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
        r"training_script\b[\s\S]*error: unrecognized arguments: (.*)",
        r"the engine's launcher does not know '\1': see what is given as --engine-arg or --extra-launch-args",
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
            remedy = hint.worked_out(found) if hint.worked_out else found.expand(hint.remedy)
            return Hint(hint.pattern, remedy, hint.collateral, unfit=hint.unfit)
    return None
