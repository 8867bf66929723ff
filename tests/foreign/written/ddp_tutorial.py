"""To the shape of PyTorch's tutorial intermediate/ddp_tutorial: starts its ranks itself, by torch.multiprocessing."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1, self.relu, self.net2 = nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def demo_checkpoint(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    ddp_model = DDP(ToyModel())
    path = tempfile.gettempdir() + "/model.checkpoint"
    if rank == 0:
        torch.save(ddp_model.state_dict(), path)
    dist.barrier()
    ddp_model.load_state_dict(torch.load(path, weights_only=True))
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    loss = nn.MSELoss()(ddp_model(torch.ones(20, 10)), torch.zeros(20, 5))
    loss.backward()
    optimizer.step()
    dist.barrier()
    if rank == 0:
        os.remove(path)
        print(f"Finished running DDP checkpoint example, loss {loss.item():.5f}.")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(demo_checkpoint, args=(int(sys.argv[1]),), nprocs=int(sys.argv[1]), join=True)
