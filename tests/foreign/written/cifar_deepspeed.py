"""To the shape of DeepSpeedExamples, training/cifar/cifar10_deepspeed.py: its options, ZeRO 1 to 3; fake images."""

import argparse
import os

import deepspeed
import torch
import torch.nn as nn
import torch.nn.functional as F


def add_argument():
    parser = argparse.ArgumentParser(description="CIFAR")
    parser.add_argument("-e", "--epochs", default=1, type=int)
    parser.add_argument("--local_rank", type=int, default=-1, help="local rank passed from distributed launcher")
    parser.add_argument("--log-interval", type=int, default=2)
    parser.add_argument("--dtype", default="fp32", type=str, choices=["bf16", "fp16", "fp32"])
    parser.add_argument("--stage", default=0, type=int, choices=[0, 1, 2, 3])
    return deepspeed.add_config_arguments(parser).parse_args()


def get_ds_config(args):
    return {
        "train_batch_size": 16,
        "steps_per_print": 2000,
        "optimizer": {"type": "Adam", "params": {"lr": 0.001, "weight_decay": 3e-7, "torch_adam": True}},
        "gradient_clipping": 1.0,
        "wall_clock_breakdown": False,
        "zero_optimization": {"stage": args.stage, "reduce_bucket_size": 50000000},
    }


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.pool, self.conv2 = nn.Conv2d(3, 6, 5), nn.MaxPool2d(2, 2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(16 * 5 * 5, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


def main(args):
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images = torch.utils.data.TensorDataset(torch.randn(64, 3, 32, 32), torch.arange(64) % 10)
    net = Net()
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=net.parameters(), training_data=images, config=get_ds_config(args)
    )
    for epoch in range(args.epochs):
        for i, (inputs, labels) in enumerate(loader):
            loss = F.cross_entropy(engine(inputs), labels)
            engine.backward(loss)
            engine.step()
            if i % args.log_interval == 0:
                print(f"[rank {engine.global_rank}, {epoch + 1}, {i + 1:5d}] loss: {loss.item():.4f}")
    engine.save_checkpoint("ds_checkpoint", tag="last")
    print(f"Finished Training, LOCAL_RANK {os.environ['LOCAL_RANK']}, --local_rank {args.local_rank}")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(add_argument())
