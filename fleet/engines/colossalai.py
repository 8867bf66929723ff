"""colossalai: what `colossalai run` starts on each node, which is torchrun; never its own fan-out over ssh."""

from __future__ import annotations

from dataclasses import replace

from fleet.engines.base import Option, Start, World
from fleet.engines.slips import refuse_owned
from fleet.engines.torchrun import Torchrun
from fleet.model import Job, Node

IMPORTED = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # set by the import of colossalai, which `colossalai run` begins with
EXTRA = "extra-launch-args"
# options that fleet passes to torchrun -> fleet's name for it; None: fleet does it itself
OWNED = {
    "nnodes": "--nnodes N",
    "nproc-per-node": "--nproc-per-node N",
    "master-addr": "--master-addr ADDR",
    "master-port": "--master-port PORT",
    "max-restarts": "--max-restarts N",
    **dict.fromkeys(("node-rank", "rdzv-id", "rdzv-backend", "rdzv-endpoint", "rdzv-conf", "standalone", "local-addr")),
    "no-python": "--no-python PROGRAM",
    "module": "-m MODULE",
}


class ColossalAI(Torchrun):
    """torchrun, and the package's interpreter: colossalai.launch_from_torch() reads the variables that it sets."""

    modules = ("torch", "colossalai")
    options = (Option(EXTRA, "torchrun's options, as in log_dir=logs,tee=3.", "A=1,B"),)

    def check(self, job: Job) -> None:
        super().check(job)
        refuse_owned(job, extra(job), OWNED)

    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        made = super().start(replace(job, engine_args=(*extra(job), *job.engine_args)), world, node, python)
        unset = IMPORTED.keys() - {*job.env, *job.env_expand}
        return replace(made, env={**{name: IMPORTED[name] for name in unset}, **made.env})


def extra(job: Job) -> list[str]:
    """--extra_launch_args as torchrun's arguments, split as `colossalai run` splits them."""
    given = str(job.engine_options.get(EXTRA, ""))
    return [f"--{item}" for item in given.split(",") if item]
