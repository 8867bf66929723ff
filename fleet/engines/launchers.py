"""Lists the options of other launchers, and of sbatch. fleet has some of them, perhaps under another name, does some
itself, and passes some on. `fleet launch`, `fleet exec`, the top level and docs/launchers.md read these lists."""

from __future__ import annotations

# option of another launcher -> fleet's option of the same meaning and values, both without dashes
SAME = {
    "nproc": "nproc-per-node",
    "num-gpus": "nproc-per-node",
    "num-accelerators": "nproc-per-node",
    "num-nodes": "nnodes",
    "num-machines": "nnodes",
    "main-process-ip": "master-addr",
    "main-process-port": "master-port",
    "hostfile": "inventory",
    "include": "hosts",
    "host": "hosts",
}
ITSELF = "leave it away: fleet does that itself"
_RANK = "a node's rank is its place in the inventory"
_RENDEZVOUS = "fleet has torchrun meet at --master-addr, by c10d where it may restart"
_LOGS = "each rank's output is in runs/RUN/HOST on this machine"
_STARTS = "fleet starts the ranks on each node, over --transport"
# option of another launcher -> (why fleet does not take it, what to do)
REFUSED = {
    "node-rank": (_RANK, ITSELF),
    "machine-rank": (_RANK, ITSELF),
    "rdzv-id": ("each run has an id of its own, so that no two meet; --name NAME names it", ITSELF),
    "rdzv-backend": (_RENDEZVOUS, ITSELF),
    "rdzv-conf": (_RENDEZVOUS, ITSELF),
    "local-addr": ("each node has its own", "data_address in the inventory, where fleet does not find it"),
    "standalone": ("a run on one node stays inside it anyway", "write --nnodes 1"),
    "same-network": ("fleet has the ranks meet at --master-addr", ITSELF),
    "run-path": ("each rank is a Python of its own, which runs the script", ITSELF),
    "use-env": ("ranks find LOCAL_RANK in their environment", ITSELF),
    "virtual-local-rank": ("fleet knows a node's ranks by LOCAL_RANK", "CUDA_VISIBLE_DEVICES can follow in the script"),
    "log-dir": (_LOGS, "write --runs-dir DIR"),
    "redirects": (_LOGS, ITSELF),
    "tee": (_LOGS, ITSELF),
    "enable-each-rank-log": (_LOGS, "write --runs-dir DIR"),
    **dict.fromkeys(
        ("local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters"),
        (_LOGS, "--ranks LIST, or first, chooses those that scroll"),
    ),
    "save-pid": ("a run's processes are found by its id", ITSELF),
    "launcher": (_STARTS, ITSELF),
    "launcher-args": (_STARTS, "--env K=V is for variables, --transport for the way"),
    "no-ssh": (_STARTS, ITSELF),
    "no-ssh-check": (_STARTS, ITSELF),
    "force-multi": (_STARTS, ITSELF),
    "deepspeed-multinode-launcher": (_STARTS, ITSELF),
    "ssh-port": ("a host's port is its own", "port: in the inventory, or -p after it in a hostfile"),
    "allow-run-as-root": ("ranks run as the user of their host", ITSELF),
    "venv-script": ("a host's environment is its own", "activate: or python: in the inventory"),
    "autotuning": (
        "DeepSpeed's tuner starts its trials with a launcher of its own, over and over; fleet leaves it alone",
        "deepspeed --autotuning run ..., then launch with what it found",
    ),
    **dict.fromkeys(
        ("elastic-training", "min-elastic-nodes", "max-elastic-nodes"),
        ("fleet starts on the hosts that are selected", "leave it away; --nnodes N takes the first N"),
    ),
    "deepspeed": ("that is an engine", "write --engine deepspeed"),
    "deepspeed-hostfile": ("a hostfile is an inventory", "write -i FILE"),
    "mpirun-hostfile": ("a hostfile is an inventory", "write -i FILE"),
    "deepspeed-inclusion-filter": ("fleet's word is -w", "write -w HOSTS"),
    "deepspeed-exclusion-filter": ("fleet's word is -x", "write -x HOSTS"),
    **dict.fromkeys(
        ("tpu", "tpu-cluster", "tpu-use-sudo", "vm", "main-training-function", "downcast-bf16"),
        ("fleet does not drive TPU pods", "leave it away"),
    ),
    "no-tpu-cluster": ("fleet does not drive TPU pods", ITSELF),
    **dict.fromkeys(
        ("aws-access-key-id", "aws-secret-access-key"), ("fleet starts ranks on hosts of yours", "leave it away")
    ),
}
# option of sbatch -> (why fleet does not take it with --on slurm, what to do)
REFUSED_IN_JOBS = {
    "array": ("a run is one job, or as many as --single-node-jobs makes of it", "--each FILE has a run for each line"),
    "chdir": ("a job begins in this folder", "write --workdir DIR"),
    "nodefile": ("nodes are named on the line", "write -w HOSTS"),
    "ntasks": ("fleet starts one task a node", "--nodes N, and --ntasks-per-node N for the ranks of each"),
    **dict.fromkeys(("overcommit", "spread-job", "use-min-nodes"), ("fleet starts one task a node", "leave it away")),
    **dict.fromkeys(("parsable", "test-only"), ("fleet submits the job, and follows it", "see --dry-run")),
    "wait": ("the queue waits for free nodes, and fleet follows the job to its end", "leave it out"),
    "wrap": ("the script is fleet's", "leave it away"),
    **dict.fromkeys(("usage", "help"), ("fleet's word is --help", "write --help-all")),
    "version": ("fleet's version is another one", "sbatch --version"),
}
# other tools -> the command of fleet to type instead
OTHERS = {
    **dict.fromkeys(("sbatch", "srun", "salloc"), "--on slurm has a run submitted: see fleet launch --help-all"),
    "squeue": "fleet --on slurm ps",
    "sinfo": "fleet hosts --from slurm",
    "scancel": "'fleet runs' lists the runs; stop ends one, and its job",
    **dict.fromkeys(("rsync", "scp", "cp"), "see fleet sync --help"),
    **dict.fromkeys(("top", "htop"), "fleet ps"),
}
# the beginning of another launcher's command line, without python -m -> the launcher
BEGIN = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), "deepspeed"),
    **dict.fromkeys(("accelerate launch", "accelerate-launch", "accelerate.commands.launch"), "accelerate"),
    "colossalai run": "colossalai",
    **dict.fromkeys(("mpirun", "mpiexec"), "mpirun"),
}
# all options of each launcher. "NAME=": it has a value. "NAME=?": the value may be missing. "NAME|N": it has a short
# form. "+": fleet passes it on. The others are in SAME or REFUSED, or fleet has them under the same name
OPTIONS = {
    "torchrun": """nnodes= nproc-per-node= nproc= rdzv-backend= rdzv-endpoint= rdzv-id= rdzv-conf= standalone
        max-restarts= +monitor-interval= +start-method= +event-log-handler= +role= module|m no-python run-path log-dir=
        redirects=|r tee=|t local-ranks-filter= duplicate-stdout-filters= duplicate-stderr-filters= node-rank=
        master-addr= master-port= local-addr= +logs-specs= +numa-binding= +signals-to-handle= +shutdown-timeout=
        virtual-local-rank use-env""",
    "deepspeed": """hostfile=|H include=|i exclude=|e num-nodes= num-gpus= num-accelerators= master-port= master-addr=
        node-rank= launcher= launcher-args= module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid
        enable-each-rank-log= autotuning= elastic-training min-elastic-nodes= max-elastic-nodes= bind-cores-to-rank
        bind-core-list= ssh-port= venv-script= log-level= +quiet|q""",
    "accelerate": """config-file= +quiet|q cpu multi-gpu tpu mixed-precision= num-processes= num-machines=
        +num-cpu-threads-per-process= +enable-cpu-affinity +dynamo-backend= +dynamo-mode= +dynamo-use-fullgraph
        +dynamo-use-dynamic +dynamo-use-regional-compilation use-deepspeed use-fsdp +use-parallelism-config
        +use-megatron-lm +gpu-ids= same-network machine-rank= main-process-ip= main-process-port= tee=|t log-dir=
        +role= rdzv-backend= rdzv-conf= max-restarts= +monitor-interval= module|m no-python tpu-cluster
        no-tpu-cluster tpu-use-sudo vm= env= main-training-function= downcast-bf16 deepspeed-config-file=
        zero-stage= +offload-optimizer-device= +offload-param-device= +offload-optimizer-nvme-path=
        +offload-param-nvme-path= gradient-accumulation-steps= gradient-clipping= +zero3-init-flag=
        +zero3-save-16bit-model= deepspeed-hostfile= deepspeed-exclusion-filter= deepspeed-inclusion-filter=
        deepspeed-multinode-launcher= +deepspeed-moe-layer-cls-names= +fsdp-version= +fsdp-offload-params=
        +fsdp-min-num-params= +fsdp-sharding-strategy= +fsdp-reshard-after-forward= +fsdp-auto-wrap-policy=
        +fsdp-transformer-layer-cls-to-wrap= +fsdp-backward-prefetch= +fsdp-state-dict-type= +fsdp-forward-prefetch=
        +fsdp-use-orig-params= +fsdp-cpu-ram-efficient-loading= +fsdp-sync-module-states=
        +fsdp-activation-checkpointing= +fsdp-activation-checkpointing-offload= +megatron-lm-tp-degree=
        +megatron-lm-use-custom-fsdp= +megatron-lm-no-load-optim= +megatron-lm-eod-mask-loss=
        +megatron-lm-overlap-cpu-optimizer-d2h-h2d= +megatron-lm-no-save-optim= +megatron-lm-optimizer-cpu-offload=
        +megatron-lm-use-precision-aware-optimizer= +megatron-lm-decoder-last-pipeline-num-layers=
        +megatron-lm-pp-degree= +megatron-lm-num-micro-batches= +megatron-lm-sequence-parallelism=
        +megatron-lm-recompute-activations= +megatron-lm-use-distributed-optimizer= +megatron-lm-gradient-clipping=
        +megatron-lm-recompute-granularity= +megatron-lm-recompute-method= +megatron-lm-recompute-num-layers=
        +megatron-lm-attention-backend= +megatron-lm-expert-model-parallel-size= +megatron-lm-context-parallel-size=
        +megatron-lm-attention-dropout= +megatron-lm-hidden-dropout= +megatron-lm-attention-softmax-in-fp32=
        +megatron-lm-expert-tensor-parallel-size= +megatron-lm-calculate-per-token-loss=
        +megatron-lm-use-rotary-position-embeddings= +fp8-backend= +fp8-use-autocast-during-eval +fp8-margin=
        +fp8-interval= +fp8-format= +fp8-amax-history-len= +fp8-amax-compute-algo= +fp8-override-linear-precision=
        +fp8-opt-level= +fp8-enable-fsdp-float8-all-gather= +fp8-pad-inner-dim= aws-access-key-id=
        aws-secret-access-key= +debug mpirun-hostfile= +parallelism-config-dp-replicate-size=
        +parallelism-config-dp-shard-size= +parallelism-config-tp-size= +parallelism-config-cp-size=
        +parallelism-config-cp-backend= +parallelism-config-cp-comm-strategy= +parallelism-config-sp-size=
        +parallelism-config-sp-backend= +parallelism-config-sp-seq-length=
        +parallelism-config-sp-seq-length-is-variable= +parallelism-config-sp-attn-implementation=""",
    "colossalai": """host=|H hostfile= include= exclude= num-nodes= nproc-per-node= master-port= master-addr=
        extra-launch-args= ssh-port= module=|m""",
    "mpirun": """num-processes=|np num-processes=|n hostfile= hostfile=|machinefile host-slots=|H host-slots=|host
        env=|x allow-run-as-root""",
    "sbatch": """array=|a account=|A +bb= +bbf= +begin=|b chdir=|D +clusters=|M +cluster-constraint= +comment=
        constraint=|C
        +container= +container-id= +contiguous +core-spec=|S +cores-per-socket= +cpu-freq= cpus-per-gpu=
        cpus-per-task=|c +deadline= +delay-boot= +dependency=|d +distribution=|m +error=|e exclude=|x exclusive=?
        +export= +export-file= +extra= +extra-node-info=|B +get-user-env=? +gid= +gpu-bind= +gpu-freq= +gpus=|G
        gpus-per-node= +gpus-per-socket= +gpus-per-task= gres= +gres-flags= +hint= +hold|H +ignore-pbs +input=|i
        job-name=|J +kill-on-invalid-dep= +licenses=|L +mail-type= +mail-user= +mcs-label= mem= +mem-bind=
        +mem-per-cpu= +mem-per-gpu= +mincpus= +network= +nice=? +no-kill|k +no-requeue nodefile=|F nodelist=|w
        nodes=|N ntasks=|n +ntasks-per-core= +ntasks-per-gpu= ntasks-per-node= +ntasks-per-socket= +open-mode=
        output=|o overcommit|O +oversubscribe|s parsable partition=|p +power= +prefer= +priority= +profile=
        +propagate=? qos=|q +quiet|Q +reboot +requeue reservation= +signal= +sockets-per-node= spread-job +switches=
        test-only +thread-spec= +threads-per-core= time=|t +time-min= +tmp= +tres-bind= +tres-per-task= +uid= usage
        use-min-nodes +verbose|v version|V help|h +wait-all-nodes= wait|W +wckey= wrap=?""",
}
# (option, value) -> fleet's arguments for it, or () if fleet does that itself
EXACT = {
    ("rdzv-backend", "c10d"): (),
    ("rdzv-backend", "static"): (),
    ("master-port", "0"): (),
    ("main-training-function", "main"): (),
    ("local-ranks-filter", "0"): ("--ranks", "first"),
    **dict.fromkeys((("master-addr", host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0")), ()),
}
# fleet's option, without dashes -> (pattern of the values of other launchers that it allows, the hint for other values)
VALUES = {
    "nnodes": (r"\d+(:\d+)?", "leave it away, or write how many hosts"),
    "nproc-per-node": (r"\d+|auto|gpu|cpu", "leave it away, or write how many ranks"),
    "num-processes": (r"\d+", "--nproc-per-node N for each host"),
    **dict.fromkeys(
        ("hosts", "exclude"),
        (r"(?!.*(localhost|127\.0\.0\.1)).+", "-w HOST:0,1 takes these devices of a host of the inventory"),
    ),
    "host-slots": ("[^:]+", "slots are the inventory's, or --nproc-per-node's: write -w HOSTS"),
}
# fleet's option, without dashes -> its short form
SHORT = {"inventory": "-i", "hosts": "-w", "host-slots": "-w", "exclude": "-x", "module": "-m"}
