"""To the shape of torchtitan's trainer: its process group, meshes, loader and clipping on CPUs."""

import os

import torch
import torch.distributed as dist
import torchtitan.tools.utils

torchtitan.tools.utils.device_type, torchtitan.tools.utils.device_module = "cpu", torch.cpu

from torch.distributed.fsdp import fully_shard  # noqa: E402
from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.config import CommConfig  # noqa: E402
from torchtitan.distributed import ParallelDims, utils  # noqa: E402
from torchtitan.tools.logging import init_logger, logger  # noqa: E402


class Rows(torch.utils.data.IterableDataset):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def __iter__(self):
        for row in range(self.rank, 32, self.size):
            yield torch.full((16,), float(row))


def main():
    init_logger()
    torch.manual_seed(0)
    world_size = utils.init_distributed(CommConfig(), enable_cpu_backend=False, base_folder="traces")
    dims = ParallelDims(dp_replicate=1, dp_shard=-1, cp=1, tp=2, pp=1, ep=1, world_size=world_size)
    dims.build_mesh()
    mesh = dims.get_mesh("dp_shard")
    model = fully_shard(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = ParallelAwareDataloader(
        Rows(mesh.get_local_rank(), mesh.size()), mesh.get_local_rank(), mesh.size(), batch_size=4
    )
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        norm = utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        mean = utils.dist_mean(loss.detach(), mesh)
        if dist.get_rank() == 0:
            logger.info(f"step {step + 1} loss {mean:.4f} grad_norm {norm.item():.4f}")
    torch.save(loader.state_dict(), f"loader{os.environ['RANK']}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
