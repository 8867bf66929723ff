"""To the shape of pytorch/examples, distributed/FSDP2/train.py: fully_shard on CPUs, checkpoints by torch's own."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def inspect_model(model):
    if dist.get_rank() == 0:
        print(model)
    print(f"rank {dist.get_rank()}:", [tuple(p.to_local().shape) for p in model.parameters()], flush=True)


def main(args):
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layers = [nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    inspect_model(model)
    optim = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)
    for step in range(args.steps):
        torch.manual_seed(step * 100 + rank)
        loss = model(torch.randn(4, 3, 16)).pow(2).mean()
        loss.backward()
        optim.step()
        optim.zero_grad()
        dist.all_reduce(loss)
        print(f"step {step} loss {loss.item() / dist.get_world_size():.5f}")
    dcp.save(get_model_state_dict(model), checkpoint_id=args.folder)
    if args.load:
        state = get_model_state_dict(model)
        dcp.load(state, checkpoint_id=args.folder)
        set_model_state_dict(model, state)
        print(f"rank {rank} has loaded", sorted(state)[:2])
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PyTorch FSDP2 example")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--load", action="store_true", help="where all ranks have one disk")
    parser.add_argument("--folder", default="checkpoints")
    main(parser.parse_args())
