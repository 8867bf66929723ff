"""To the shape of ColossalAI, examples/tutorial/new_api/cifar_resnet/train.py: launch_from_torch, here on CPUs."""

import argparse

import colossalai
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--plugin", type=str, default="torch_ddp", choices=["torch_ddp", "low_level_zero"])
    parser.add_argument("-c", "--checkpoint", type=str, default="checkpoint")
    parser.add_argument("--target_acc", type=float, default=None)
    args = parser.parse_args()
    colossalai.launch_from_torch(seed=42)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for step in range(4):
            torch.manual_seed(100 * epoch + 10 * step + dist.get_rank())
            loss = model(torch.randn(16, 8)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {dist.get_rank()} of {dist.get_world_size()} epoch {epoch} loss {loss.item():.5f}", flush=True)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), f"{args.checkpoint}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
