"""DeepSpeed: its per-node launcher, started by fleet on each node; never its own fan-out over ssh."""

from __future__ import annotations

import base64
import json

from fleet.engines.base import SPAWN, Engine, Start, World, python_command
from fleet.model import Job, Node


class DeepSpeed(Engine):
    """`python -m deepspeed.launcher.launch`, as DeepSpeed's own runner starts it on each node."""

    modules = ("torch", "deepspeed")

    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        argv = (
            python,
            "-m",
            "deepspeed.launcher.launch",
            f"--world_info={world_info(world)}",
            f"--node_rank={node.node_rank}",
            f"--master_addr={world.master_addr}",
            f"--master_port={world.master_port}",
            *job.engine_args,
            # the launcher would put --local_rank behind the first word of spawn.py's argv; spawn.py does it right
            "--no_python",
            "--no_local_rank",
        )
        command = python_command(job, python)
        at = None if "--no_local_rank" in job.engine_args else len(command) - len(job.args)
        return Start((*argv, *SPAWN), command, local_rank_at=at)


def world_info(world: World) -> str:
    """DeepSpeed's world: base64 of {host: [local device ids]}, in node-rank order."""
    ids = {
        node.host.name: list(node.host.devices or ())[: node.local_world_size] or list(range(node.local_world_size))
        for node in world.nodes
    }
    return base64.urlsafe_b64encode(json.dumps(ids).encode()).decode()
