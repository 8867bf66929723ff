"""To the shape of pytorch-ignite, examples/contrib/cifar10: idist.Parallel, by a launcher or on its own."""

import os
import sys

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_trainer


def training(local_rank, config):
    torch.manual_seed(config["seed"] + idist.get_rank())
    torch.set_num_threads(1)
    model = idist.auto_model(torch.nn.Linear(8, 2))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.cross_entropy)

    @trainer.on(Events.EPOCH_COMPLETED)
    def _(engine):
        loss = idist.all_reduce(engine.state.output)
        where = f"rank {idist.get_rank()} of {idist.get_world_size()}, local {local_rank}, node {idist.get_node_rank()}"
        with open(f"ignite-{idist.get_rank()}.txt", "a") as f:
            f.write(f"{where}: epoch {engine.state.epoch} {loss:.5f}\n")

    x = torch.randn(16, 8)
    trainer.run([(x, (x.sum(1) > 0).long())] * 4, max_epochs=2)
    idist.barrier()


if __name__ == "__main__":
    own = {}
    if sys.argv[1:] == ["spawn"]:
        env = os.environ
        own = {"nproc_per_node": 2, "nnodes": int(env["NNODES"]), "node_rank": int(env["NODE_RANK"])}
        own |= {"master_addr": env["MASTER_ADDR"], "master_port": int(env["MASTER_PORT"])}
    with idist.Parallel(backend="gloo", **own) as parallel:
        parallel.run(training, {"seed": 3})
