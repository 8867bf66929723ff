"""To the shape of PyTorch's recipe distributed_async_checkpoint: FSDP's state saved in the background, loaded again."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard


class AppState(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main():
    dist.init_process_group("cpu:gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = fully_shard(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    background, future = dist.new_group(), None  # gloo mixes up collectives of two threads in one group
    for step in range(4):
        optimizer.zero_grad()
        model(torch.rand(8, 16)).sum().backward()
        optimizer.step()
        if future is not None:
            future.result()
        state = {"app": AppState(model, optimizer)}
        future = dcp.async_save(state, checkpoint_id=f"checkpoint_step{step}", process_group=background)
    future.result()
    # each node has its own ranks' part, and a run without a disk that all share loads no other
    there = sorted(name for name in os.listdir("checkpoint_step3") if name.endswith(".distcp"))
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} saved {there}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
