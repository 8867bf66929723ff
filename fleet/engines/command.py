"""command: any program, one process per slot, with the environment variables that torch and MPI users know."""

from __future__ import annotations

from fleet.engines.base import SPAWN, Engine, Start, World
from fleet.model import Job, Node


class AnyCommand(Engine):
    """SCRIPT is a program on the node, not a Python file; fleet's spawn program starts one per slot."""

    program = True

    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        env = {
            "MASTER_ADDR": world.master_addr,
            "MASTER_PORT": str(world.master_port),
            "WORLD_SIZE": str(world.size),
            "LOCAL_WORLD_SIZE": str(node.local_world_size),
            "NODE_RANK": str(node.node_rank),
            "NNODES": str(len(world.nodes)),
        }
        if node.host.devices is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, node.host.devices))
        argv = (*SPAWN, str(node.first_rank), str(node.local_world_size))
        return Start(argv, (job.script, *job.args), env)
