"""Explains what a rank died of, and gives the next step. HINTS is a table; the first match wins. A text without a match
has no hint."""

from __future__ import annotations

from fleet.node.gang.timed_out import NAMED, TIMED_OUT
from fleet.rules.hint import Hint
from fleet.rules.hints_host import HOST_HINTS
from fleet.rules.worked_out import DIFFER, NO_CHECKPOINT, batch_sizes, no_checkpoint

TAIL_BYTES = 64 * 1024  # so much of the end of a log is searched for a hint
# names in errors of torch's own connections
_TORCHS = r"(?:gloo|c10d|TCPStore|ProcessGroup|NCCL|Dist(?:Network|Backend|Store)?Error)"

HINTS = (
    *HOST_HINTS,
    Hint(
        r"PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos|Disk quota exceeded",
        "a file could not be written to its end: a full disk, or a quota? 'fleet exec -- df -h' shows room",
    ),
    Hint(
        r"invalid load key, 'v'",
        "that file is the pointer of git-lfs, not what it stands for: 'git lfs pull' here, then 'fleet sync'",
    ),
    Hint(
        r"invalid load key, |not a gzip file|file signature not found|"
        r"deserializing header: (?:[Hh]eader ?[Tt]oo ?[Ll]arge|[Ii]nvalid)",
        "that file is not of the kind that the script takes it for, or was cut short: 'fleet exec -- ls -l FILE' and "
        "'head -c 64 FILE' show what it is",
    ),
    Hint(
        r"PytorchStreamReader failed (?:reading zip archive|locating file)|^EOFError: Ran out of input|"
        r"deserializing header: (?:[Hh]eader ?[Tt]oo ?[Ss]mall|MetadataIncompleteBuffer|incomplete metadata)|"
        r"OSError: \[Errno 22\] Invalid argument\nraised in .*/torch/serialization\.py",
        "that checkpoint was cut short, by a run that ended while it was written: take an earlier one, and have the "
        "script write to another name first, then os.replace",
    ),
    Hint(
        r"Error\(s\) in loading state_dict for (?![\s\S]*size mismatch for .*torch\.Size\(\[0\]\))",
        "that checkpoint is of another model than the script builds, or of the same one in a wrapper ('module.', "
        "'_orig_mod.'): 'fleet exec -- sha256sum FILE' shows whether all hosts have the same",
    ),
    Hint(
        r"num_samples should be a positive integer value, but got num_samples=0$",
        "the data set is empty there: 'fleet exec -- ls DIR' shows which hosts have the data, 'fleet sync --data DIR' "
        "brings yours",
    ),
    Hint(
        r"^EOFError: EOF when reading a line",
        "the script asks a question, and a rank has no terminal: give the answer as an option of the script",
    ),
    Hint(
        r"FileExistsError: \[Errno 17\] File exists: '((?:[^'/]*/)*[^'/.]+)'\nraised in (?!.*/multiprocessing/)",
        r"\1 is there already, of an earlier run or another rank: os.makedirs(..., exist_ok=True), or make it once a "
        "node (LOCAL_RANK 0)",
    ),
    Hint(
        r"couldn't connect to 'https://huggingface\.co|LocalEntryNotFoundError|"
        r"Max retries exceeded with url.*huggingface|Failed to (?:connect to|resolve) '?huggingface",
        "that node does not reach huggingface.co: fetch it here, copy it by 'fleet sync --data "
        "~/.cache/huggingface:~/.cache/', and give --env HF_HUB_OFFLINE=1",
    ),
    Hint(
        r"\(([\w.-]+), \d+\) cannot be retrieved \(gai error",
        r"that node does not resolve the master's name, \1: 'fleet exec -- getent hosts \1' shows who does; "
        "--master-addr, or 'data_address' of the first host, takes a number",
    ),
    Hint(
        r"Failed to resolve '([\w.-]+)'",
        r"that node does not resolve \1: 'fleet exec -- getent hosts \1' shows who does; /etc/hosts, or DNS there",
    ),
    Hint(
        r"gaierror|Name or service not known|Temporary failure in name resolution",
        "that node does not resolve a name: 'fleet exec -- getent hosts NAME' shows who does; /etc/hosts, or DNS there",
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
        r"look for a collective inside of an 'if rank'",
    ),
    Hint(
        r"Mismatched collective detected.* around rank (\d+)",
        r"ranks call different collectives, or of other sizes, around rank \1: "
        r"--env TORCH_DISTRIBUTED_DEBUG=DETAIL has torch compare them",
    ),
    Hint(
        r"op\.preamble\.length <= op\.nbytes|data size doesn't match expected size",
        "ranks are in different collectives, or in one with tensors of different sizes: --env "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL has torch compare them",
    ),
    Hint(
        r"waiting for clients\. (\d+)/(\d+) clients joined",
        r"\1 of \2 came to the master: the others' own logs say why, or a firewall keeps them from it; 'fleet check' "
        "compares them",
        collateral=True,
    ),
    Hint(
        r"CUDA unknown error|CUDA initialization: |cudaErrorUnknown",
        "CUDA does not start on that host: 'fleet exec -- nvidia-smi' and 'fleet check' show whether its driver does; "
        "after a driver's update, or a suspend, it takes a reboot",
    ),
    Hint(
        r"invalid device ordinal",
        "more ranks than GPUs on that node: set 'slots', or --nproc-per-node gpu",
    ),
    Hint(
        r"no CUDA-capable device|No CUDA GPUs are available",
        "a rank sees no GPU there: does the host have one ('fleet check'), and does CUDA_VISIBLE_DEVICES leave it one?",
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
        r"(?:FileNotFoundError|No such file or directory|Expected a string path).*?[\s'\"`]"
        r"((?!\S*(?:snapshot|checkpoint|ckpt|global_step))[^/\s'\"`][^\s'\"`]*\.(?:json|ya?ml)|[\w./-]*ds_?config[\w./-]*)",
        r"\1 is not there: paths are relative to the workdir; 'fleet launch --sync' brings the current folder",
    ),
    Hint(
        r"^(?:yaml\.\w+\.)?(?:Parser|Scanner|Composer)Error: .*\n(?:.*\n){0,20} *"
        r"in \"([^\"<\n]+)\", line (\d+), column (\d+)",
        r"\1 is no valid YAML, at line \2, column \3: mostly its indentation, a tab, or a colon without a space",
    ),
    Hint(
        r"\[Errno 5\] Input/output error: '([^']+)'",
        r"the disk or the file server below \1 does not read or write: 'fleet exec -w {host} -- dmesg' may say why",
    ),
    Hint(NO_CHECKPOINT, "a checkpoint is not on that node", worked_out=no_checkpoint),
    Hint(
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(/[^']+)'|"
        r"^(?:\S*/)?(?:cat|cp|du|g(?:un)?zip|head|ls|mv|rsync|sed|sort|stat|tail|tar|wc|xz|zcat|zstd): "
        r"(?:cannot (?:stat|open|access) )?['‘]?(/[^'’:\n]+)['’]?: No such file or directory$",
        r"\g<1>\g<2> is not on that node: 'fleet exec -- ls -ld \g<1>\g<2>' shows who has it, 'fleet sync --data "
        r"\g<1>\g<2>' brings yours",
    ),
    Hint(
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '([^'/][^']*[/.][^']*)'(?![\s\S]*/subprocess\.py)",
        r"\1 is not there: paths count from the workdir, and a sync leaves out what git ignores: 'fleet sync --data "
        r"\1' brings yours",
    ),
    Hint(
        r"DeepSpeed requires --deepspeed_config|deepspeed_config.*(?:required|not specified)",
        "the script got no DeepSpeed configuration: add --deepspeed_config FILE after the script",
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
        r"retrieving ncclUniqueId from \[0\]",
        "rank 0 had failed, or was busy for longer than others wait: its log says; init_process_group(timeout=...)",
        collateral=True,
    ),
    Hint(
        NAMED,
        r"rank \g<1>\g<2>\g<3> never came to where others waited for it: its log says where it was",
        collateral=True,
    ),
    Hint(TIMED_OUT, f"a collective timed out: a rank that did not come to it, {DIFFER}", collateral=True),
    Hint(
        rf"{_TORCHS}[\s\S]*?(?:Connection closed by|Connection reset by peer|Broken pipe|remote process exited)|"
        r"(?:Connection reset by peer|Connection closed by|Broken pipe)[\s\S]*raised in .*torch/distributed/|"
        r"recvValue failed|failed to recv|SignalException: Process \d+ got signal: 15",
        "another rank went away first; its own log says why",
        collateral=True,
    ),
    Hint(
        r"(?:NCCL|nccl)[\s\S]*(?:connect|Connect)\b.*(?:refused|timed out|No route)",
        "NCCL could not connect: a firewall between the data addresses? --env NCCL_DEBUG=INFO says more",
    ),
    Hint(
        r"ncclSystemError|unhandled system error",
        "a system call of NCCL failed: --env NCCL_DEBUG=INFO shows which one; 'fleet check' compares "
        "networks and /dev/shm",
    ),
    Hint(
        r"client socket has timed out after .*trying to connect to \(([^,()]+), (\d+)\)",
        r"nothing answered at \1 port \2: a firewall between the data addresses, rank 0 that was not up yet, or an "
        "address of the script's own, which no process serves: init_method='env://' takes fleet's",
    ),
    Hint(
        r"client socket has (?:failed|timed)|DistNetworkError|connectFullMesh|Connect timeout|"
        r"timed out after .* waiting for clients",
        "ranks could not reach each other: a firewall between the data addresses, or data_address to be set?",
    ),
    Hint(
        r"(/\S*torch_extensions/\S+)/\w+\.so: cannot open shared object file",
        r"the build in \1 was cut short: 'fleet exec -- rm -rf \1' has it built again",
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
        r"unrecognized arguments: (.*)|No such option:? '?(--?[\w-]+)|not used by the HfArgumentParser: \['([^']*)'",
        r"the script does not know '\g<1>\g<2>\g<3>': fleet's options come before SCRIPT, the script's own "
        "after it",
    ),
    Hint(r"can't open file '([^']*)'", r"\1 is not on that node: 'fleet launch --sync' brings the current folder"),
    Hint(
        r"Read-only file system: '(/(?:[^']*/)?)[^'/]*'",
        r"\1 is mounted read-only there: 'fleet exec -- findmnt -T \1' shows where it is not, and what it is",
    ),
    Hint(
        r"Permission denied: '([^']+)'|(\S+): Permission denied",
        r"the user there may not do that with \g<1>\g<2>: 'fleet exec -- ls -ld \g<1>\g<2>' shows owner and mode",
    ),
    Hint(
        r"(?:version `|libstdc\+\+.*)(GLIBC(?:XX)?_[\d.]+)'? not found",
        r"a library there is older than \1: set 'activate' in the inventory to bring the right one, or rebuild",
    ),
)
