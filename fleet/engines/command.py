"""command: any program, a process a slot or a node, with the environment variables that torch and MPI users know."""

from __future__ import annotations

from dataclasses import replace

from fleet.engines.base import SPAWN, Engine, Option, Start, World, python_command, ranks_env
from fleet.errors import UsageError
from fleet.model import Job, Node


class AnyCommand(Engine):
    """SCRIPT is a program on the node, not a Python file; fleet's spawn program starts it."""

    program = True
    options = (Option("per", "Start it once a node, or once a slot [slot].", choices=("node", "slot")),)

    def ranks(self, job: Job) -> int | None:
        return 1 if job.engine_options.get("per") == "node" else None

    def check(self, job: Job) -> None:
        super().check(job)
        if job.nproc_per_node is not None and self.ranks(job):
            raise UsageError("--per node starts one process a node", hint="leave one of the two away")

    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        argv = (*SPAWN, str(node.first_rank), str(node.local_world_size))
        return Start(argv, python_command(replace(job, kind=self.kind(job)), python), ranks_env(world, node))
