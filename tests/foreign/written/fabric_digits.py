"""To the shape of Lightning Fabric's docs: `fabric run` counts and starts, the script asks for no number."""

import gc

import torch
from lightning.fabric import Fabric


def main():
    fabric = Fabric()
    fabric.seed_everything(1, verbose=False)
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 2)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(64, 16)
    data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
    for x, y in fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=8)):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    print(f"rank {fabric.global_rank} of {fabric.world_size}: {fabric.all_reduce(loss.detach()):.5f}", flush=True)
    fabric.save("fabric.ckpt", {"model": model})
    if torch.distributed.is_initialized():
        del model
        gc.collect()  # it refers to itself, and outlives its process group otherwise
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
