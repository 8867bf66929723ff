"""ZeRO-1 with DeepSpeed on a small model: each rank keeps its own share of the optimizer's state.

    fleet launch --engine deepspeed examples/zero1.py --deepspeed_config examples/zero1.json
    DS_ACCELERATOR=cpu deepspeed --num_gpus 2 examples/zero1.py --deepspeed_config examples/zero1.json

Without a GPU set DS_ACCELERATOR=cpu (`fleet launch --env DS_ACCELERATOR=cpu ...`): gloo then carries the
traffic, and "torch_adam" in the configuration spares DeepSpeed's compiled Adam.
"""

from __future__ import annotations

import argparse

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--local_rank", type=int, default=-1, help="set by DeepSpeed's launcher")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    return deepspeed.add_config_arguments(parser).parse_args()


def main() -> None:
    args = arguments()
    on_cpu = get_accelerator().device_name() == "cpu"
    if on_cpu:
        torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo" if on_cpu else None)
    torch.manual_seed(args.seed)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=net.parameters(), training_data=data
    )
    first = last = float("nan")
    batches = iter(deepspeed.runtime.dataloader.RepeatingLoader(loader))
    for step in range(args.steps):
        x, y = (part.to(engine.device) for part in next(batches))
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        last = loss.item()
        first = last if step == 0 else first
    rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    stage = engine.zero_optimization_stage()
    print(f"rank {rank} of {world}: ZeRO-{stage}, {args.steps} steps, loss {first:.3f} -> {last:.3f}", flush=True)
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main()
