"""Defines the engine torchrun, which starts one elastic agent per node. The rendezvous is static, so that global ranks
follow the inventory's order."""

from __future__ import annotations

from fleet.engines.base import CONSOLE, SPAWN, Argument, Engine, Start, World, python_command, visible_devices
from fleet.model import Job, Node
from fleet.node.run.torchrun import RESTARTABLE, torchrun_options

# if one of these were given twice, it would override fleet's value, and ranks would wait for each other
OWNED = {
    "nnodes": "--nnodes N|MIN:MAX",
    "node-rank": None,
    "nproc-per-node": "--nproc-per-node N",
    "master-addr": "--master-addr ADDR",
    "master-port": "--master-port PORT",
}


class Torchrun(Engine):
    """Starts `torchrun`. An elastic world uses the c10d rendezvous, which can restart."""

    modules: tuple[str, ...] = ("torch",)
    elastic = True
    owned = OWNED

    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        argv: list[Argument] = [python, CONSOLE, "torch.distributed.run", "torchrun"]
        argv += torchrun_options(
            world.run_id,
            len(world.nodes),
            world.least,
            node.local_world_size,
            node.node_rank,
            world.master_addr,
            world.master_port,
            world.addresses.get(node.host.name),
            job.max_restarts,
        )
        # "--" ends torchrun's options: its parser would take unique prefixes of options in the whole line
        options = (*job.engine_args, "--no-python", "--")
        env = {**visible_devices(node), **(RESTARTABLE if world.least else {})}
        return Start((*argv, *options, *SPAWN), python_command(job, python), env)
