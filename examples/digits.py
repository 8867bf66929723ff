"""Data-parallel training on scikit-learn's handwritten digits: 1797 real 8x8 images, ten classes.

    python examples/digits.py                                       one process
    torchrun --nproc-per-node 2 examples/digits.py                  two processes on this machine
    fleet launch --nproc-per-node 2 examples/digits.py --epochs 8   every host of the inventory

NCCL where there are GPUs, gloo where there are none. Rank 0 shows a bar with the loss and, at the end, the
accuracy on images that no rank has trained on; with --min-accuracy the run fails when it is lower.

With --checkpoint FILE every node keeps the state after each epoch in a FILE of its own. At the start the ranks take the
furthest of them, wherever it lies, so that a node which is new goes on with the others; the weights then end as they
would have, on as many ranks, without any interruption: equal digests say so.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
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
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="keep the state there, and go on from it")
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


def save(path: Path, state: dict[str, Any]) -> None:
    """In one step: whoever is killed here leaves the epoch before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.uname().nodename}.part")
    torch.save(state, part)
    os.replace(part, path)


def furthest(path: Path, device: torch.device) -> dict[str, Any] | None:
    """The state that the most epochs have gone into, the same on all ranks; None where no rank has any."""
    state: dict[str, Any] | None = torch.load(path, map_location="cpu") if path.exists() else None
    if not dist.is_initialized():
        return state
    epochs: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(epochs, state["epoch"] if state else 0)
    box = [state]
    dist.broadcast_object_list(box, src=epochs.index(max(epochs)), device=device)
    return box[0]


def train(
    model: nn.Module, net: nn.Module, data: TensorDataset, args: argparse.Namespace, rank: int, world: int
) -> None:
    """model: net, behind what exchanges its gradients."""
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(data, world, rank, shuffle=True, seed=args.seed)
    # the batch is shared out, so that the same steps are taken on one rank and on a hundred
    loader = DataLoader(data, batch_size=max(1, args.batch_size // world), sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    # DDP lays gradients out anew after the first step it sees, and sums them in another order from then on: it sees one
    # here, so that all steps that count are the same, from whichever on
    nn.functional.cross_entropy(model(data.tensors[0][:1]), data.tensors[1][:1]).backward()
    first = 0
    if args.checkpoint and (state := furthest(args.checkpoint, data.tensors[0].device)):
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        first = state["epoch"]
        if rank == 0:
            print(f"goes on after epoch {first}", flush=True)
    steps = len(loader)
    with tqdm(total=args.epochs * steps, initial=first * steps, desc="train", unit="step", disable=rank != 0) as bar:
        for epoch in range(first, args.epochs):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                bar.set_postfix(epoch=epoch + 1, loss=f"{loss.item():.3f}", refresh=False)
                bar.update()
            if args.checkpoint and os.environ.get("LOCAL_RANK", "0") == "0":
                state = {"epoch": epoch + 1, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
                save(args.checkpoint, {**state, "rng": torch.get_rng_state()})


def digest(net: nn.Module) -> str:
    """Of all weights: equal where they are equal to the bit."""
    weights = b"".join(tensor.cpu().numpy().tobytes() for tensor in net.state_dict().values())
    return hashlib.sha256(weights).hexdigest()[:16]


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset, rank: int, world: int) -> tuple[Tensor, int]:
    """(right, all) over the whole test set; each rank looks at every world-th image."""
    model.eval()
    images, labels = data.tensors
    right = (model(images[rank::world]).argmax(dim=1) == labels[rank::world]).sum()
    if dist.is_initialized():
        dist.all_reduce(right)
    return right, len(data)


def learned(args: argparse.Namespace, device: torch.device, rank: int, world: int) -> tuple[nn.Module, Tensor, int]:
    """(what was trained, right, all). What DDP put around it is freed here: behind the end of its process group, that
    waits for gloo's threads and can hang or abort."""
    torch.manual_seed(args.seed)
    training, test = datasets(device)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    ids = [device.index] if device.type == "cuda" else None
    model = DistributedDataParallel(net, device_ids=ids) if dist.is_initialized() else net
    train(model, net, training, args, rank, world)
    return net, *accuracy(net, test, rank, world)


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
        # `summed` lives as long as main(): gloo's thread would need the interpreter to free it, which may be ending
        net, summed, total = learned(args, device, rank, world)
    finally:
        if distributed:
            gc.collect()  # DDP refers to itself, and one that is freed behind its process group can hang or abort
            dist.destroy_process_group()
    right = int(summed.item())
    if rank == 0:
        print(f"test accuracy: {right / total:.4f} ({right} of {total} images; world size {world})", flush=True)
        print(f"weights: {digest(net)}", flush=True)
    if right / total < args.min_accuracy:
        sys.exit(f"accuracy {right / total:.4f} is below {args.min_accuracy}")


if __name__ == "__main__":
    main()
