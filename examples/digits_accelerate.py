"""digits.py's model under accelerate: DDP, FSDP or DeepSpeed, as its configuration says.

fleet launch --engine accelerate --config-file examples/accelerate.yaml examples/digits_accelerate.py --epochs 8
accelerate launch --config_file examples/accelerate.yaml examples/digits_accelerate.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from digits import arguments, datasets
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    args = arguments()
    gloo = [] if torch.cuda.is_available() else [InitProcessGroupKwargs(backend="gloo")]
    accelerator = Accelerator(cpu=args.cpu, kwargs_handlers=gloo)
    torch.manual_seed(args.seed)
    training, test = datasets(torch.device("cpu"))
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    # a rank's share of the batch: the same steps are taken on one rank and on many
    batches = DataLoader(training, max(1, args.batch_size // accelerator.num_processes), shuffle=True)
    checked = DataLoader(test, 64)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    net, optimizer, batches, checked = accelerator.prepare(net, optimizer, batches, checked)
    for _ in range(args.epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(net(images), labels))
            optimizer.step()
    with torch.no_grad():
        parts = [accelerator.gather_for_metrics((net(x).argmax(dim=1), y)) for x, y in checked]
    right = sum(int((found == labels).sum()) for found, labels in parts)
    total = sum(len(labels) for _, labels in parts)
    where = f"rank {accelerator.process_index} of {accelerator.num_processes}, {type(net).__name__}"
    print(f"{where}: test accuracy {right / total:.4f} ({right} of {total} images)", flush=True)
    # an engine that is freed behind its process group can abort
    net, optimizer, batches, checked = accelerator.free_memory(net, optimizer, batches, checked)
    accelerator.end_training()
    if right / total < args.min_accuracy:
        raise SystemExit(f"accuracy {right / total:.4f} is below {args.min_accuracy}")


if __name__ == "__main__":
    main()
