"""colossalai: fleet starts torchrun on each node, as `colossalai run` does. Its own fan-out over ssh is never used."""

from __future__ import annotations

from dataclasses import replace

from fleet.engines.base import Option, Start, World
from fleet.engines.slips import refuse_owned
from fleet.engines.torchrun import Torchrun
from fleet.model import Job, Node

IMPORTED = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # `colossalai run` sets it when it imports colossalai
EXTRA = "extra-launch-args"
# option that fleet itself passes to torchrun -> the option of fleet that sets it, or None if fleet has no such option
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
    """Starts torchrun. colossalai.launch_from_torch() reads the variables that torchrun sets."""

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
    """Returns --extra_launch_args as arguments of torchrun, split as `colossalai run` splits them."""
    given = str(job.engine_options.get(EXTRA, ""))
    return [f"--{item}" for item in given.split(",") if item]
