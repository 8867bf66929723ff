"""The programs, public ones first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.foreign.program import PACKAGES, Program

ACCELERATE = "accelerate 1.15.0, src/accelerate/test_utils/scripts"
SCRIPTS = "{site}/accelerate/test_utils/scripts"
BROADCAST = "{set}/colossalai-0.5.0/tests/test_auto_parallel/test_tensor_shard/test_broadcast.py"
SDIST = "accelerate 1.15.0's sdist"
TORCH = "torch 2.13.0"
TIMED = {r"\d+\.\d+(e-\d+)? ?(seconds|sec|s|ms|us|µs)\b": "seconds", r"(took|in) \d+\.\d+(e-\d+)?s?": "seconds"}

PUBLIC = [
    Program("test_cli.py", ACCELERATE, (f"{SCRIPTS}/test_cli.py",), "accelerate"),
    Program("test_script.py", ACCELERATE, (f"{SCRIPTS}/test_script.py",), "accelerate", nodes=1, ranks=2),
    Program("test_sync.py", ACCELERATE, (f"{SCRIPTS}/test_sync.py",), "accelerate"),
    Program("test_ops.py", ACCELERATE, (f"{SCRIPTS}/test_ops.py",), "accelerate"),
    # without GPUs the last lines of these two are a traceback
    Program("test_distributed_data_loop.py", ACCELERATE, (f"{SCRIPTS}/test_distributed_data_loop.py",), code=1),
    Program("test_ddp_comm_hook.py", ACCELERATE, (f"{SCRIPTS}/test_ddp_comm_hook.py",), code=1),
    Program("test_merge_weights.py", ACCELERATE, (f"{SCRIPTS}/test_merge_weights.py",), "accelerate", nodes=1, ranks=2),
    Program(
        "test_state_checkpointing.py",
        f"{SDIST}, tests",
        ("{set}/accelerate-1.15.0/tests/test_state_checkpointing.py",),
        "accelerate",
        nodes=1,
        ranks=2,
        package="accelerate",
    ),
    Program(
        "pytest test_optimizer.py",
        f"{SDIST}, tests",
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "{set}/accelerate-1.15.0/tests/test_optimizer.py"),
        package="accelerate",
        varies=TIMED,
    ),
    Program("accelerate env", "accelerate 1.15.0", ("accelerate", "env"), "command"),
    Program(
        "transformers env", "transformers 5", ("transformers", "env"), "torchrun", nodes=1, options=("--no-python",)
    ),
    Program("collect_env", f"{TORCH}, torch.utils.collect_env", ("-m", "torch.utils.collect_env")),
    Program(
        "simple_timeit",
        f"{TORCH}, torch.utils.benchmark.examples",
        ("-m", "torch.utils.benchmark.examples.simple_timeit"),
        nodes=1,
        varies={r"(?:^ .*\n)+": "figures", **TIMED},
    ),
    Program(
        "xeon run_cpu",
        f"{TORCH}, torch.backends.xeon.run_cpu",
        (
            "python",
            "-m",
            "torch.backends.xeon.run_cpu",
            "--ninstances",
            "1",
            "--ncores-per-instance",
            "1",
            "words.py",
            "a",
        ),
        "command",
        nodes=1,
    ),
    Program(
        "torch.distributed.launch",
        f"{TORCH}, torch.distributed.launch",
        (
            "python",
            "-m",
            "torch.distributed.launch",
            "--use-env",
            "--nproc-per-node",
            "1",
            "--master-port",
            "{port}",
            "echo1.py",
            "hi",
        ),
        "command",
        nodes=1,
    ),
    Program("ds_report", "deepspeed 0.19.8", ("ds_report",), "command", varies=TIMED),
    Program(
        "ds_report under deepspeed",
        "deepspeed 0.19.8",
        ("ds_report",),
        "deepspeed",
        options=("--no_python", "--no_local_rank"),
    ),
    Program("colossalai check", "colossalai 0.5.0", ("colossalai", "check", "-i"), "command", nodes=1),
    Program(
        "test_aten.py",
        "colossalai 0.5.0's sdist, tests/test_analyzer/test_subclasses",
        ("{set}/colossalai-0.5.0/tests/test_analyzer/test_subclasses/test_aten.py",),
        "colossalai",
        nodes=1,
        ranks=2,
        package="colossalai",
        code=1,  # without GPUs its last lines are a traceback
    ),
    Program(
        "pytest test_broadcast.py",
        "colossalai 0.5.0's sdist, tests/test_auto_parallel/test_tensor_shard",
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "/tmp", BROADCAST),
        "colossalai",
        nodes=1,
        ranks=2,
        package="colossalai",
        varies=TIMED,
    ),
    Program(
        "process_monitor.py",
        "torchx 0.7.0, torchx.apps.utils",
        ("-m", "torchx.apps.utils.process_monitor", "--poll_rate", "0.2", "--timeout", "1", "sh", "-c", "sleep 60"),
        nodes=1,
        package="torchx",
        code=241,  # as the monitor makes of SIGTERM
    ),
    Program(
        "booth_main.py",
        "torchx 0.7.0, torchx.apps.utils",
        ("python", "-m", "torchx.apps.utils.booth_main", "--x1", "1", "--x2", "3", "--tracker_base", "booth"),
        "command",
        package="torchx",
    ),
    Program(
        "copy_main.py",
        "torchx 0.7.0, torchx.apps.utils",
        (
            "-m",
            "torchx.apps.utils.copy_main",
            "--src",
            "file:///root/foreign/input.txt",
            "--dst",
            "file:///root/foreign/b",
        ),
        package="torchx",
        nodes=1,
    ),
    Program(
        "http_transport_bench.py",
        "torchft 0.2.0, torchft.checkpointing",
        ("-m", "torchft.checkpointing.http_transport_bench", "--total-size", "6000000", "--chunk-size", "600000"),
        package="torchft",
        varies=TIMED,
    ),
]

EXAMPLES = "pytorch/examples"
ELASTIC = "pytorch, test/distributed/elastic"
MEGATRON = (
    *(
        "pretrain_gpt.py",
        "--num-layers",
        "2",
        "--hidden-size",
        "32",
        "--num-attention-heads",
        "4",
        "--seq-length",
        "64",
    ),
    *("--max-position-embeddings", "64", "--micro-batch-size", "2", "--global-batch-size", "8", "--lr", "0.00015"),
    *("--train-iters", "4", "--lr-decay-iters", "320000", "--lr-decay-style", "cosine", "--min-lr", "1.0e-5"),
    *("--weight-decay", "1e-2", "--lr-warmup-fraction", ".01", "--clip-grad", "1.0", "--adam-betas", "0.9", "0.95"),
    *("--data-path", "0.3", "my-gpt2_text_document", "0.7", "two words", "--vocab-file", "gpt2-vocab.json"),
    *("--merge-file", "gpt2-merges.txt", "--split", "949,50,1", "--log-interval", "2", "--save-interval", "2"),
    *("--eval-interval", "1000", "--eval-iters", "10", "--distributed-backend", "gloo", "--save", "my checkpoints"),
    *("--load", "my checkpoints", "--tensor-model-parallel-size", "2", "--fp16"),
)
HF = (
    "--max_steps",
    "4",
    "--logging_steps",
    "2",
    "--save_strategy",
    "no",
    "--report_to",
    "none",
    "--disable_tqdm",
    "True",
)
ODD = (
    *("", " ", "two words", "a'b", 'a"b', "$HOME", "$(id)", "`id`", "x;echo injected", "*", "~", "[a-z]", "a\nb", "\\"),
    *("-", "%s", "{}", "é", "!x", "#", "&", "|", ">", "\t", "=", "x=y", ":", "a" * 5000),
)
LIKE_OPTIONS = ("--m", "1", "--lr=1e-4", "-h", "--", "--nnodes", "7", "--l")

SPEED = {r"'?train_(runtime|\w+_per_second)'?\W+[\d.e+-]+'?": "speed", r"\d+(\.\d+)?it/s": "speed"}
LIGHTNING: dict[str, Any] = {
    "package": "lightning",
    "env": {"PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": ""},
    "loose": r"\.ckpt$",
}
HYDRA = {
    "PYTHONPATH": f"{PACKAGES}/hydra:{PACKAGES}/hydra/antlr4-python3-runtime-4.9.3/src",
    "PYTHONWARNINGS": "ignore",
}
FABRIC = (
    'exec python -m lightning.fabric.cli --accelerator cpu --devices 2 --num-nodes "$NNODES" --node-rank '
    '"$NODE_RANK" --main-address "$MASTER_ADDR" --main-port "$MASTER_PORT" fabric_digits.py'
)
SHAPED = [
    Program("multinode.py", f"{EXAMPLES}, ddp-tutorial-series", ("multinode.py", "4", "2"), ranks=2),
    Program(
        "multinode.py (elastic)",
        f"{EXAMPLES}, ddp-tutorial-series",
        ("multinode.py", "4", "1", "--fail_at", "2"),
        nodes=1,
        ranks=2,
        options=("--max-restarts", "1"),
        env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        varies={r"by peer \[[\d.]+\]:\d+": "peer"},  # fleet keeps a run on one node inside it
    ),
    Program(
        "lightning_digits.py",
        "Lightning, its Trainer under torchrun",
        ("lightning_digits.py", "--devices", "2"),
        ranks=2,
        **LIGHTNING,
    ),
    Program(
        "lightning_digits.py (once a node)",
        "Lightning, which starts a node's ranks itself",
        ("python", "lightning_digits.py", "--devices", "2"),
        "node",
        ranks=2,
        ordered=False,
        **LIGHTNING,
    ),
    Program(
        "lightning.sh", "Lightning, on-prem cluster", ("lightning.sh",), "script", ranks=2, ordered=False, **LIGHTNING
    ),
    Program(
        "fabric run",
        "Lightning Fabric's own launcher, given each node's rank",
        ("sh", "-c", FABRIC),
        "node",
        ranks=2,
        ordered=False,
        **LIGHTNING,
    ),
    Program("nanogpt.py", "nanoGPT, torchrun", ("nanogpt.py", "--max_iters=4"), ranks=2),
    Program("nanogpt.py alone", "nanoGPT, python", ("python", "nanogpt.py", "--max_iters=4"), "node"),
    Program("nanogpt.py fails", "nanoGPT, torchrun", ("nanogpt.py", "--fail_at=2"), nodes=1, ranks=2, code=1),
    Program("dcp_async.py", "PyTorch, distributed_async_checkpoint", ("dcp_async.py",), loose=r"\.metadata$"),
    Program("tensor_parallel.py", f"{EXAMPLES}, tensor_parallelism", ("tensor_parallel.py",), ranks=2),
    Program("pipeline.py", "pytorch/tutorials, pipelining", ("pipeline.py",)),
    Program(
        "titan.py",
        "torchtitan 0.3.0, its parts around a small model",
        ("titan.py",),
        ranks=2,
        package="torchtitan",
        env={"PYTHONWARNINGS": "ignore"},
        varies={r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+": "time"},
    ),
    Program(
        "hydra_train.py",
        "hydra, basic launcher under torchrun",
        ("hydra_train.py", "optim.lr=0.5", "+data.shards=[1,2]", "hydra.job.chdir=True"),
        package="hydra",
        env=HYDRA,
        loose=r"hydra\.yaml$|\.log$",
        varies={r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d": "time"},
    ),
    Program(
        "hydra_train.py fails",
        "hydra",
        ("hydra_train.py", "bad=true", "data.path=/data"),
        nodes=1,
        ranks=2,
        code=1,
        package="hydra",
        env=HYDRA,
        loose=r"hydra\.yaml$|\.log$",
        varies={r"\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d": "time"},
    ),
    Program("ignite_cifar.py", "pytorch-ignite, cifar10 under torchrun", ("ignite_cifar.py",), package="ignite"),
    Program(
        "ignite_cifar.py spawn",
        "pytorch-ignite, idist.Parallel with its own ranks",
        ("python", "ignite_cifar.py", "spawn"),
        "node",
        ranks=2,
        ordered=False,
        package="ignite",
        varies={r"(?<=master_port: )\d+": "port"},
    ),
    Program(
        "accelerate test",
        "accelerate 1.15.0's own test",
        ("accelerate", "test"),
        "node",
        nodes=1,
        ordered=False,
        varies=TIMED,
    ),
    Program(
        "hf_trainer.py (accelerate)",
        "transformers, run_clm.py",
        ("hf_trainer.py", "--output_dir", "hf", *HF),
        "accelerate",
        varies=SPEED,
        loose=r"training_args\.bin$",
    ),
    Program(
        "hf_trainer.py alone",
        "transformers, run_clm.py, python",
        ("python", "hf_trainer.py", "--output_dir", "hf", *HF),
        "node",
        nodes=1,
        varies=SPEED,
        loose=r"training_args\.bin$",
    ),
    Program("mingpt.py", f"{EXAMPLES}, minGPT-ddp", ("mingpt.py",), ranks=1),
    Program("imagenet.py --dummy", f"{EXAMPLES}, imagenet", ("imagenet.py", "--dummy", "-a", "small", "--seed", "3")),
    Program(
        "imagenet.py (its own ranks)",
        f"{EXAMPLES}, imagenet",
        ("python", "imagenet.py", "--dummy", "--multiprocessing-distributed", "-j", "1"),
        "command",
        env={"PYTHONUNBUFFERED": ""},  # or two processes may share a line of the stdout that they share
        ordered=False,
    ),
    Program("fsdp.py", f"{EXAMPLES}, FSDP2", ("fsdp.py", "--load"), nodes=1, ranks=2, loose=r"\.metadata$"),
    Program("fsdp.py on two nodes", f"{EXAMPLES}, FSDP2", ("fsdp.py",), loose=r"\.metadata$"),
    Program("parameter_server.py", f"{EXAMPLES}, rpc", ("parameter_server.py",), ranks=2),
    Program(
        "ddp_tutorial.py",
        "pytorch/tutorials, ddp_tutorial",
        ("python", "ddp_tutorial.py", "2"),
        "command",
        nodes=1,
        ordered=False,
    ),
    Program("pretrain_gpt.py", "Megatron-LM", MEGATRON, ranks=2),
    Program(
        "pretrain_gpt_distributed.sh",
        "Megatron-LM, examples",
        ("pretrain_gpt_distributed.sh", "out"),
        "script",
        ranks=2,
        varies={r"(?<=/none_)\w{8}": "random name"},
    ),
    Program(
        "hf_trainer.py",
        "transformers, run_clm.py",
        ("hf_trainer.py", "--output_dir", "hf", *HF),
        varies=SPEED,
        loose=r"training_args\.bin$",
    ),
    Program("cifar ZeRO 1", "DeepSpeedExamples, cifar", ("cifar_deepspeed.py", "--stage", "1"), "deepspeed"),
    Program("cifar ZeRO 2", "DeepSpeedExamples, cifar", ("cifar_deepspeed.py", "--stage", "2"), "deepspeed"),
    Program("cifar ZeRO 3", "DeepSpeedExamples, cifar", ("cifar_deepspeed.py", "--stage", "3"), "deepspeed"),
    Program(
        "zero_to_fp32.py",
        "deepspeed 0.19.8, as it puts it beside checkpoints",
        ("zero_to_fp32.sh",),
        "script",
        nodes=1,
        varies={r"(?<=ds_logs/)\d{14}": "time"},
        loose=r"^launcher\.log$",
    ),
    Program("resume.sh", "accelerate, examples", ("resume.sh",), "script"),
    Program(
        "complete_cv.py",
        "accelerate, examples",
        ("complete_cv.py", "--checkpointing_steps", "epoch", "--output_dir", "out"),
        "accelerate",
    ),
    Program("colossal.py", "ColossalAI, tutorial", ("colossal.py", "-p", "torch_ddp"), "colossalai", nodes=1, ranks=2),
    Program("echo1.py", ELASTIC, ("echo1.py", "hello"), ranks=2),
    Program("echo1.py --raises", ELASTIC, ("echo1.py", "--raises", "x"), nodes=1, code=1),
    Program("echo1.py --exitcode", ELASTIC, ("echo1.py", "--exitcode", "42", "x"), nodes=1, code=42),
    Program("echo1.py --segfault", ELASTIC, ("echo1.py", "--segfault", "x"), nodes=1, code=139),
    Program(
        "echo1.py --exitcode (deepspeed)",
        ELASTIC,
        ("echo1.py", "--exitcode", "42", "x"),
        "deepspeed",
        options=("--no_local_rank",),
        nodes=1,
        code=42,
    ),
    Program(
        "echo1.py --segfault (deepspeed)",
        ELASTIC,
        ("echo1.py", "--segfault", "x"),
        "deepspeed",
        options=("--no_local_rank",),
        nodes=1,
        code=139,
    ),
    Program(
        "echo1.py --segfault (command)",
        ELASTIC,
        ("python", "echo1.py", "--segfault", "x"),
        "command",
        nodes=1,
        code=139,
        known={"stdout has 1 lines only by fleet: 'segfault from 0'": "PYTHONUNBUFFERED: nothing printed is lost"},
    ),
    Program(
        "test_script_init_method.py",
        f"{ELASTIC}/../launcher",
        ("test_script_init_method.py", "--init-method", "tcp://@", "--is-torchelastic-launched-out-file", "launched"),
        ranks=2,
    ),
    Program("workers.py", "torch.utils.data", ("workers.py",), ordered=False),
    Program("log_to_stdout.py", "logging", ("log_to_stdout.py",), "ssh", nodes=1),
    Program("log_to_stdout.py (command)", "logging", ("python", "-u", "log_to_stdout.py"), "command"),
    Program("tee.sh", "shell recipes", ("tee.sh", "--lr", "two words"), "script", ordered=False),
    Program("words.py", "of our own", ("words.py", *ODD), ranks=1),
    Program(
        "words.py --like-options",
        "of our own",
        ("words.py", *LIKE_OPTIONS),
        known={"exit code 2 by hand|^logs of": "torchrun takes words of the script for its own (Python 3.11)"},
    ),
    Program("words.py (command)", "of our own", ("python", "words.py", *ODD, *LIKE_OPTIONS), "command"),
    Program("words.py (deepspeed)", "of our own", ("words.py", *ODD), "deepspeed", options=("--no_local_rank",)),
    Program("all_bytes.py", "of our own", ("all_bytes.py",), nodes=2, ranks=2),
    Program("all_bytes.py (command)", "of our own", ("python", "all_bytes.py"), "command", ranks=2),
    Program("abort.py", "NCCL's watchdog", ("abort.py",), nodes=1, ranks=2, code=134),
    Program("sigterm.py", "Trainer's preemption", ("sigterm.py",), nodes=1, ranks=2, code=42),
    Program("daemon.py", "ray start and its like", ("python", "daemon.py"), "command", nodes=1),
    Program("leaks.py", "of our own", ("leaks.py",), varies={r"(?<=leak-\d-)\w{8}": "random name"}),
    Program("asks.py", "of our own", ("python", "asks.py"), "command", nodes=1, code=4),
    Program("train", "a compiled trainer", ("./train", "--lr", "two words"), options=("--no-python",), ranks=2),
    Program("train (command)", "a compiled trainer", ("./train", "a", ""), "command", ranks=2),
]
PROGRAMS = [*(replace(program, public=True) for program in PUBLIC), *SHAPED]
