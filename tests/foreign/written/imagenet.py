"""To the shape of pytorch/examples, imagenet/main.py with --dummy: its options, meters and checkpoints, a small net."""

import argparse
import os
import random
import shutil
import warnings
from enum import Enum

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
parser.add_argument("data", metavar="DIR", nargs="?", default="imagenet")
parser.add_argument("-a", "--arch", metavar="ARCH", default="small")
parser.add_argument("-j", "--workers", default=2, type=int, metavar="N")
parser.add_argument("--epochs", default=2, type=int, metavar="N")
parser.add_argument("-b", "--batch-size", default=8, type=int, metavar="N")
parser.add_argument("--lr", "--learning-rate", default=0.1, type=float, metavar="LR", dest="lr")
parser.add_argument("--momentum", default=0.9, type=float, metavar="M")
parser.add_argument("--wd", "--weight-decay", default=1e-4, type=float, metavar="W", dest="weight_decay")
parser.add_argument("-p", "--print-freq", default=2, type=int, metavar="N")
parser.add_argument("--resume", default="", type=str, metavar="PATH")
parser.add_argument("-e", "--evaluate", dest="evaluate", action="store_true")
parser.add_argument("--world-size", default=-1, type=int)
parser.add_argument("--rank", default=-1, type=int)
parser.add_argument("--dist-url", default="env://", type=str)
parser.add_argument("--dist-backend", default="gloo", type=str)
parser.add_argument("--seed", default=None, type=int)
parser.add_argument("--nprocs", default=2, type=int, help="in the place of the number of GPUs")
parser.add_argument("--multiprocessing-distributed", action="store_true")
parser.add_argument("--dummy", action="store_true", help="use fake data to benchmark")

best_acc1 = 0


class FakeData(Dataset):
    def __init__(self, size, shape, classes):
        self.size, self.shape, self.classes = size, shape, classes

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.shape, generator=generator), index % self.classes


class Summary(Enum):
    NONE, AVERAGE = 0, 1


class AverageMeter:
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)


def main():
    args = parser.parse_args()
    if args.seed is not None:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        warnings.warn("You have chosen to seed training. This may slow it down.", stacklevel=1)
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ["WORLD_SIZE"])
    if args.multiprocessing_distributed:
        args.world_size = args.nprocs * args.world_size
        mp.spawn(main_worker, nprocs=args.nprocs, args=(args.nprocs, args))
    else:
        main_worker(0, 1, args)


def main_worker(gpu, ngpus_per_node, args):
    global best_acc1
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.dist_url == "env://" and args.rank == -1:
        args.rank = int(os.environ["RANK"])
    if args.multiprocessing_distributed:
        args.rank = args.rank * ngpus_per_node + gpu
    print(f"Use GPU: {gpu} for training, rank {args.rank} of {args.world_size}")
    dist.init_process_group(
        backend=args.dist_backend, init_method=args.dist_url, world_size=args.world_size, rank=args.rank
    )
    print(f"=> creating model '{args.arch}'")
    model = nn.Sequential(
        nn.Conv2d(3, 4, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)
    )
    model = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    if args.dummy:
        print("=> Dummy data is used!")
    train_dataset, val_dataset = FakeData(96, (3, 64, 64), 10), FakeData(32, (3, 64, 64), 10)
    sampler = DistributedSampler(train_dataset)
    train_loader = DataLoader(train_dataset, args.batch_size, num_workers=args.workers, sampler=sampler)
    val_loader = DataLoader(val_dataset, args.batch_size, num_workers=args.workers)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer, epoch, args)
        acc1 = validate(val_loader, model)
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        if args.rank % ngpus_per_node == 0:
            state = {"epoch": epoch + 1, "arch": args.arch, "state_dict": model.state_dict(), "best_acc1": best_acc1}
            save_checkpoint(state, is_best, f"checkpoint{args.rank}.pth.tar")
    dist.barrier()
    dist.destroy_process_group()


def train(loader, model, criterion, optimizer, epoch, args):
    losses = AverageMeter("Loss", ":.4e")
    model.train()
    for i, (images, target) in enumerate(loader):
        loss = criterion(model(images), target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % args.print_freq == 0:
            print(f"Epoch: [{epoch}][{i + 1}/{len(loader)}]\t{losses}", flush=True)


def validate(loader, model):
    model.eval()
    with torch.no_grad():
        right = sum((model(images).argmax(1) == target).sum().item() for images, target in loader)
    print(f" * Acc@1 {100 * right / len(loader.dataset):.3f}")
    return right


def save_checkpoint(state, is_best, filename):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best" + filename)


if __name__ == "__main__":
    main()
