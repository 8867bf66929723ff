"""Data-parallel training of digits.py's model, started as Colossal-AI has it.

    fleet launch --engine colossalai examples/digits_colossalai.py --epochs 8
    colossalai run --nproc_per_node 2 examples/digits_colossalai.py

launch_from_torch() reads what the launcher says of this rank, and takes NCCL where there are GPUs, gloo where there are
none.
"""

from __future__ import annotations

import gc

import colossalai
import torch
import torch.distributed as dist
from digits import accuracy, arguments, datasets, device_of_rank, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    args = arguments()
    device = device_of_rank(args.cpu)
    colossalai.launch_from_torch(seed=args.seed, verbose=False)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    training, test = datasets(device)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    ids = [device.index] if device.type == "cuda" else None
    train(DistributedDataParallel(net, device_ids=ids), net, training, args, rank, world)
    right, total = accuracy(net, test, rank, world)
    print(f"rank {rank} of {world}: test accuracy {right / total:.4f}", flush=True)
    gc.collect()  # DDP refers to itself, and one that is freed behind its process group can hang or abort
    dist.destroy_process_group()
    if right / total < args.min_accuracy:
        raise SystemExit(f"accuracy {right / total:.4f} is below {args.min_accuracy}")


if __name__ == "__main__":
    main()
