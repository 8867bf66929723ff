"""Defines the engine accelerate: fleet starts accelerate's launcher on each node with the user's configuration. The
launcher's own fan-out is never used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.engines.base import (
    CONSOLE,
    SPAWN,
    Engine,
    InRunDir,
    Option,
    Start,
    World,
    as_written,
    python_command,
    ranks_env,
)
from fleet.errors import UsageError
from fleet.model import Job, Node
from fleet.own import read_given

CONFIG = "accelerate.yaml"
# the configurations that the launcher would read on a node by default
DEFAULT_CONFIG = (
    "$HF_HOME/accelerate/default_config.yaml",
    "$XDG_CACHE_HOME/huggingface/accelerate/default_config.yaml",
    "~/.cache/huggingface/accelerate/default_config.yaml",
)
NO_CONFIG = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\n"
OWNED = {
    "config-file": "--config-file FILE",
    "machine-rank": None,
    "num-machines": "--nnodes N",
    "num-processes": "--nproc-per-node N",
    "main-process-ip": "--master-addr ADDR",
    "main-process-port": "--master-port PORT",
    "same-network": None,
    "rdzv-backend": None,
    "deepspeed-multinode-launcher": None,
    "deepspeed-hostfile": "-i FILE",
    "deepspeed-inclusion-filter": "-w NODESET",
    "deepspeed-exclusion-filter": "-x NODESET",
    "mpirun-hostfile": "-i FILE",
    "module": "-m MODULE",
    "no-python": "--no-python PROGRAM",
}
OPTIONS = (
    Option("config-file", "Its configuration, a file on this machine, used as it is.", "FILE"),
    Option("mixed-precision", "Precision of its training.", choices=("no", "fp16", "bf16", "fp8")),
    Option("cpu", "Train on CPUs."),
    Option("multi-gpu", "Train on GPUs, by DDP."),
    Option("use-fsdp", "Train with FSDP."),
    Option("use-deepspeed", "Train with DeepSpeed."),
    Option("zero-stage", "DeepSpeed's ZeRO stage.", "N"),
    Option("deepspeed-config-file", "DeepSpeed's configuration, on the nodes.", "FILE"),
    Option("gradient-accumulation-steps", "Steps between two of the optimizer's.", "N"),
    Option("gradient-clipping", "Norm that gradients are clipped to.", "NORM"),
)


class Accelerate(Engine):
    """Starts `accelerate-launch`. Its configuration is read on the head and copied to the run's folder on each node.
    fleet overrides the configuration's settings of hosts, ranks, address, port and launcher."""

    modules = ("torch", "accelerate")
    options = OPTIONS
    owned = OWNED

    def needs(self, job: Job) -> tuple[str, ...]:
        return (*self.modules, "deepspeed") if kind_of(job) == "DEEPSPEED" else self.modules

    def unread(self, job: Job) -> tuple[str, ...]:
        return () if "config-file" in job.engine_options else DEFAULT_CONFIG

    def on_gpus(self, job: Job) -> bool:
        on_cpus = "cpu" in job.engine_options or config_of(job).get("use_cpu")
        use_cpu = {**job.env, **job.env_expand}.get("ACCELERATE_USE_CPU", "")
        return (
            not on_cpus and kind_of(job) != "DEEPSPEED" and use_cpu.lower() not in ("1", "true", "yes", "y", "t", "on")
        )

    def prepare(self, job: Job, folder: Path) -> Job:
        given = job.engine_options.get("config-file")
        # with use_cpu in the configuration, the launcher divides the cores among the ranks; with the option --cpu
        # alone, it does not
        none = NO_CONFIG + "use_cpu: true\n" * ("cpu" in job.engine_options)
        text = read_config(folder / given, given) if given is not None else none
        notes = (*job.notes, *unsaved(text, given), *(unread_default_config(os.environ) if given is None else ()))
        return replace(job, files={**job.files, CONFIG: text}, notes=notes)

    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        # gpu_ids of a configuration apply to all nodes, so they must not limit a node's selected devices
        selected = () if node.host.devices is None else ("--gpu_ids=all",)
        argv = (
            python,
            CONSOLE,
            "accelerate.commands.launch",
            "accelerate-launch",
            "--config_file",
            InRunDir(CONFIG),
            *as_written(job.engine_options, "config-file"),
            *job.engine_args,
            f"--machine_rank={node.node_rank}",
            f"--num_machines={len(world.nodes)}",
            # the launcher divides this number by the number of machines
            f"--num_processes={node.local_world_size * len(world.nodes)}",
            f"--main_process_ip={world.master_addr}",
            f"--main_process_port={world.master_port}",
            "--same_network",
            "--rdzv_backend=static",
            "--deepspeed_multinode_launcher=standard",
            *selected,
            "--no_python",
            *SPAWN,
            # on CPUs, or without a configuration, the launcher starts one process on each node, which starts the ranks
            str(node.first_rank),
            str(node.local_world_size),
            "TORCHELASTIC_RUN_ID",
        )
        return Start(argv, python_command(job, python), ranks_env(world, node))


def unread_default_config(env: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning if 'accelerate config' wrote a file on this machine that no option names."""
    cache = env.get("HF_HOME") or f"{env.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    path = Path(cache).expanduser() / "accelerate/default_config.yaml"
    if path.is_file():
        yield f"accelerate's {path} is not read by default: --config-file {path} is for all hosts"


def unsaved(text: str, given: str | None) -> Iterator[str]:
    """Yields a warning if the configuration trains weights that cannot be saved as one file."""
    plugin = (given is not None and parsed(text, given).get("deepspeed_config")) or {}
    if isinstance(plugin, Mapping) and plugin.get("zero_stage") == 3 and not plugin.get("zero3_save_16bit_model"):
        yield (
            f"{given} has ZeRO-3 without zero3_save_16bit_model: true, so get_state_dict gathers no weights to save; "
            "checkpoints of save_state are made one file by their zero_to_fp32.py"
        )


def config_of(job: Job) -> dict[str, Any]:
    return parsed(job.files.get(CONFIG, NO_CONFIG), str(job.engine_options.get("config-file")))


def kind_of(job: Job) -> str:
    """Returns the kind of training: MULTI_GPU, FSDP, DEEPSPEED and the like."""
    return "DEEPSPEED" if "use-deepspeed" in job.engine_options else str(config_of(job)["distributed_type"]).upper()


def read_config(path: Path, given: str) -> str:
    """Returns the configuration's text for the nodes. given: its path as typed. Raises UsageError if it is no
    configuration, or one that does not start ranks on hosts."""
    try:
        text = read_given(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "no text"
        raise UsageError(
            f"accelerate's configuration {given}: {why}",
            hint="it is read on this machine, and sent along: write its path here",
        ) from None
    config = parsed(text, given)
    if config.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise UsageError(
            f"{given}: compute_environment {config['compute_environment']}: fleet starts ranks on hosts of yours",
            hint="compute_environment: LOCAL_MACHINE",
        )
    if str(config.get("distributed_type")).upper() in ("TPU", "XLA"):
        raise UsageError(f"{given}: distributed_type {config['distributed_type']}: fleet does not drive TPU pods")
    if config.pop("mpirun_config", None) or path.suffix == ".json":
        # the launcher would start ranks by mpirun, which is another fan-out, and no option turns mpirun off
        import yaml

        return yaml.safe_dump(config, sort_keys=False)
    return text


def parsed(text: str, given: str) -> dict[str, Any]:
    import yaml  # imported late: even a misspelt verb loads the engines

    try:
        config = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits
        mark = getattr(error, "problem_mark", None)
        where = f"{given}:{mark.line + 1}" if mark else given
        raise UsageError(f"no YAML: {getattr(error, 'problem', None) or 'unreadable'}", where=where) from None
    if not isinstance(config, Mapping) or "distributed_type" not in config:
        raise UsageError(
            f"{given} is no configuration of accelerate: it has no distributed_type",
            hint="accelerate config writes one",
        )
    return dict(config)
