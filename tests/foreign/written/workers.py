"""To the shape of the dataloader section of torch.utils.data's documentation: workers that print and write files."""

import os

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        print(f"rank {os.environ['RANK']}: worker {info.id} of {info.num_workers}", flush=True)
        for number in range(info.id, 12, info.num_workers):
            yield torch.full((2, 2), number)


def init(worker):
    with open(f"worker-{os.environ['RANK']}-{worker}", "w") as f:
        f.write(f"{torch.initial_seed() - worker}")


def main():
    for context in ("fork", "forkserver"):
        generator = torch.Generator().manual_seed(7)
        loader = DataLoader(
            Shards(), 2, num_workers=3, worker_init_fn=init, multiprocessing_context=context, generator=generator
        )
        batches = sum(batch.sum().item() for batch in loader)
        print(f"rank {os.environ['RANK']}: {context} {batches}", flush=True)


if __name__ == "__main__":
    main()
