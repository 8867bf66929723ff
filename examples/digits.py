"""Data-parallel training on scikit-learn's handwritten digits: 1797 real 8x8 images, ten classes.

    python examples/digits.py                                       one process
    torchrun --nproc-per-node 2 examples/digits.py                  two processes on this machine
    fleet launch --nproc-per-node 2 examples/digits.py --epochs 8   every host of the inventory

NCCL where there are GPUs, gloo where there are none. Rank 0 shows a bar with the loss and, at the end, the
accuracy on images that no rank has trained on; with --min-accuracy the run fails when it is lower.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from tqdm import tqdm


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128, help="images a step, over all ranks")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="leave GPUs alone")
    parser.add_argument("--min-accuracy", type=float, default=0.0, help="exit 1 when the result is lower")
    return parser.parse_args()


def device_of_rank(cpu_only: bool) -> torch.device:
    """The GPU with this process's local rank, or the CPU."""
    if cpu_only or not torch.cuda.is_available():
        torch.set_num_threads(1)  # the model is tiny: more threads only wait for each other
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def datasets(device: torch.device) -> tuple[TensorDataset, TensorDataset]:
    """(train, test); images are float32 of shape (64,) in 0..1, labels int64."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.2, stratify=labels, random_state=0)
    x_train, x_test = (torch.tensor(x, dtype=torch.float32, device=device) for x in parts[:2])
    y_train, y_test = (torch.tensor(y, dtype=torch.int64, device=device) for y in parts[2:])
    return TensorDataset(x_train, y_train), TensorDataset(x_test, y_test)


def train(model: nn.Module, data: TensorDataset, args: argparse.Namespace, rank: int, world: int) -> None:
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(data, world, rank, shuffle=True, seed=args.seed)
    # the batch is shared out, so that the same steps are taken on one rank and on a hundred
    loader = DataLoader(data, batch_size=max(1, args.batch_size // world), sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    with tqdm(total=args.epochs * len(loader), desc="train", unit="step", disable=rank != 0) as bar:
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                bar.set_postfix(epoch=epoch + 1, loss=f"{loss.item():.3f}", refresh=False)
                bar.update()


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset, rank: int, world: int) -> tuple[int, int]:
    """(right, all) over the whole test set; each rank looks at every world-th image."""
    model.eval()
    images, labels = data.tensors
    right = (model(images[rank::world]).argmax(dim=1) == labels[rank::world]).sum()
    if dist.is_initialized():
        dist.all_reduce(right)
        dist.barrier()  # while `right` is alive: gloo's thread needs the interpreter to free it, which may be ending
    return int(right.item()), len(data)


@record  # a rank's traceback is then in torchrun's error file, and fleet names it
def main() -> None:
    args = arguments()
    device = device_of_rank(args.cpu)
    distributed = "WORLD_SIZE" in os.environ
    if distributed:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
    print(f"rank {rank} of {world} on {os.uname().nodename} ({device})", flush=True)
    try:
        torch.manual_seed(args.seed)
        training, test = datasets(device)
        net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
        ids = [device.index] if device.type == "cuda" else None
        model = DistributedDataParallel(net, device_ids=ids) if distributed else net
        train(model, training, args, rank, world)
        right, total = accuracy(net, test, rank, world)
    finally:
        if distributed:
            dist.destroy_process_group()
    if rank == 0:
        print(f"test accuracy: {right / total:.4f} ({right} of {total} images; world size {world})", flush=True)
    if right / total < args.min_accuracy:
        sys.exit(f"accuracy {right / total:.4f} is below {args.min_accuracy}")


if __name__ == "__main__":
    main()
