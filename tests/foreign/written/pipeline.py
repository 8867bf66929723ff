"""To the shape of pytorch's tutorial pipelining_tutorial: a stage a rank, microbatches by 1F1B, over gloo."""

import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    stage = PipelineStage(torch.nn.Linear(8, 8), rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    torch.manual_seed(9)
    x, y, losses = torch.rand(16, 8), torch.rand(16, 8), []
    for _ in range(2):
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
    loss = f"{torch.stack(losses).mean().item():.4f}" if losses else "none"
    print(f"stage {rank} of {world} (local {os.environ['LOCAL_RANK']}): loss {loss}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
