"""torchrun: one elastic agent per node. Static rendezvous, so that global ranks follow the inventory's order."""

from __future__ import annotations

from fleet.engines.base import CONSOLE, SPAWN, Engine, Start, Word, World, python_command, visible_devices
from fleet.engines.slips import refuse_owned
from fleet.model import Job, Node
from fleet.node.run.torchrun import RESTARTABLE, words

# options that each node's agent receives -> fleet's name for it; a second one would win, and ranks would wait for each
# other
OWNED = {
    "nnodes": "--nnodes N|MIN:MAX",
    "node-rank": None,
    "nproc-per-node": "--nproc-per-node N",
    "master-addr": "--master-addr ADDR",
    "master-port": "--master-port PORT",
}


class Torchrun(Engine):
    """`torchrun`; in an elastic world the c10d rendezvous, which can restart."""

    modules: tuple[str, ...] = ("torch",)
    elastic = True

    def check(self, job: Job) -> None:
        super().check(job)
        refuse_owned(job, job.engine_args, OWNED)

    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        argv: list[Word] = [python, CONSOLE, "torch.distributed.run", "torchrun"]
        argv += words(
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
        # "--": what follows is not for torchrun's parser, which takes unique prefixes of its options anywhere
        options = (*job.engine_args, "--no-python", "--")
        env = {**visible_devices(node), **(RESTARTABLE if world.least else {})}
        return Start((*argv, *options, *SPAWN), python_command(job, python), env)
