"""To the shape of accelerate, examples/complete_cv_example.py: checkpoints by epoch, and going on from one."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def training_function(config, args):
    accelerator = Accelerator(gradient_accumulation_steps=2, project_dir=args.output_dir)
    set_seed(config["seed"])
    images = TensorDataset(torch.randn(96, 8), torch.arange(96) % 3)
    train_loader = DataLoader(images, shuffle=True, batch_size=config["batch_size"], num_workers=1)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(params=model.parameters(), lr=config["lr"] / 25)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], epochs=2, steps_per_epoch=12)
    model, optimizer, train_loader, scheduler = accelerator.prepare(model, optimizer, train_loader, scheduler)
    starting_epoch = 0
    if args.resume_from_checkpoint:
        accelerator.print(f"Resumed from checkpoint: {args.resume_from_checkpoint}")
        accelerator.load_state(args.resume_from_checkpoint)
        starting_epoch = int(args.resume_from_checkpoint.rpartition("_")[2]) + 1
    for epoch in range(starting_epoch, config["num_epochs"]):
        model.train()
        right = torch.zeros(1)
        for x, y in train_loader:
            with accelerator.accumulate(model):
                outputs = model(x)
                accelerator.backward(nn.functional.cross_entropy(outputs, y))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            right += (outputs.argmax(dim=-1) == y).sum()
        total = accelerator.gather(right).sum().item()
        accelerator.print(f"epoch {epoch}: {100 * total / len(images):.2f}, lr {scheduler.get_last_lr()[0]:.6f}")
        if args.checkpointing_steps == "epoch":
            accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))
    print(f"process {accelerator.process_index} of {accelerator.num_processes} {accelerator.distributed_type}")
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--checkpointing_steps", type=str, default=None)
    parser.add_argument("--output_dir", type=str, default="out")
    parser.add_argument("--resume_from_checkpoint", type=str, default=None)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    training_function({"lr": 3e-2, "num_epochs": args.epochs, "seed": 42, "batch_size": 4}, args)


if __name__ == "__main__":
    main()
