"""To the shape of pytorch/examples, distributed/tensor_parallelism: a device mesh of two kinds, DTensors over gloo."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def main():
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2, int(os.environ["WORLD_SIZE"]) // 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(7)
    model = parallelize_module(Block(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model = fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.manual_seed(mesh["dp"].get_local_rank())
    for _ in range(3):
        loss = model(torch.rand(8, 16)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {dist.get_rank()} at {mesh.get_coordinate()} of {tuple(mesh.shape)}: {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
