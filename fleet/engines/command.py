"""Defines the engine command, which starts any program once per slot or once per node. Each rank gets the environment
variables that torch.distributed reads."""

from __future__ import annotations

from dataclasses import replace

from fleet.engines.base import SPAWN, Engine, Option, Start, World, python_command, ranks_env
from fleet.model import Job, Node

# variable for the number of slots, for a launcher that is started once per node; scripts for torchrun use this name
SLOTS = "NPROC_PER_NODE"
FIRST_RANK = "FLEET_FIRST_RANK"
COUNTS = ("WORLD_SIZE", "LOCAL_WORLD_SIZE")  # variables for numbers of ranks


class AnyCommand(Engine):
    """Starts SCRIPT as a program of the node, by fleet's spawn program."""

    program = True
    options = (Option("per", "Start it once a slot, or once a node [slot].", choices=("node", "slot")),)

    def ranks(self, job: Job) -> int | None:
        return 1 if job.engine_options.get("per") == "node" else None

    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        argv = (*SPAWN, str(node.first_rank), str(node.local_world_size))
        env = ranks_env(world, node)
        if self.ranks(job):
            # with RANK and WORLD_SIZE, a program would wait for ranks that are never started. spawn.py and rank.py read
            # FIRST_RANK
            env = {FIRST_RANK: str(node.first_rank), **{name: env[name] for name in env if name not in COUNTS}}
            if SLOTS not in {*job.env, *job.env_expand}:
                env[SLOTS] = str(world.slots.get(node.host.name, 1))
        return Start(argv, python_command(replace(job, kind=self.kind(job)), python), env)
