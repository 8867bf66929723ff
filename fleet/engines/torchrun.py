"""torchrun: one elastic agent per node. Static rendezvous, so that global ranks follow the inventory's order."""

from __future__ import annotations

from fleet.engines.base import CONSOLE, SPAWN, Engine, Start, Word, World, python_command, visible_devices
from fleet.engines.slips import refuse_owned
from fleet.model import Job, Node

# The agents' store outlives an attempt, and ranks that share it, as is torch's default, find there what those before
# them left: gloo then dials ports that nobody listens on any more. So each attempt has a store, and a port, of its own;
# where fleet itself starts a run again, new agents and another port see to that.
RESTARTABLE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

# Of an elastic world: seconds that agents wait for more of them once there are enough, and that one may say nothing, of
# which there are three; and how often ranks that fail are started again, as they do where a node is lost.
PATIENCE, RESTARTS = "last_call_timeout=15,keep_alive_interval=3", 3

# what each node's agent is told -> fleet's word for it; a second one would win, and ranks would wait for each other
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
        # --rdzv-id and the port belong to this run alone: two runs on the same nodes never join each other
        argv: list[Word] = [
            python,
            CONSOLE,
            "torch.distributed.run",
            "torchrun",
            f"--nnodes={world.least}:{len(world.nodes)}" if world.least else f"--nnodes={len(world.nodes)}",
            f"--nproc-per-node={node.local_world_size}",
            f"--rdzv-id={world.run_id}",
            *self._rendezvous(job, world, node),
        ]
        own = world.addresses.get(node.host.name)
        if own:
            argv.append(f"--local-addr={own}")
        # "--": what follows is not for torchrun's parser, which takes unique prefixes of its options anywhere
        options = (*job.engine_args, "--no-python", "--")
        env = {**visible_devices(node), **(RESTARTABLE if world.least else {})}
        return Start((*argv, *options, *SPAWN), python_command(job, python), env)

    @staticmethod
    def _rendezvous(job: Job, world: World, node: Node) -> list[str]:
        if not world.least:
            return [
                f"--node-rank={node.node_rank}",
                f"--master-addr={world.master_addr}",
                f"--master-port={world.master_port}",
                "--max-restarts=0",
            ]
        # is_host is told, not guessed from host names. c10d orders nodes by address: the ranks that a node
        # gets are torchrun's choice here, and are read from what the ranks report
        return [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={world.master}",
            f"--rdzv-conf=is_host={int(node.node_rank == 0)},{PATIENCE}",
            f"--max-restarts={job.max_restarts or RESTARTS}",
        ]
