"""To the shape of Megatron-LM, pretrain_gpt.py: its argument list of many words, tensor parallel groups, its lines."""

import argparse
import os

import torch
import torch.distributed as dist


def parse_args():
    parser = argparse.ArgumentParser(description="Megatron-LM Arguments", allow_abbrev=False)
    for name in ("num-layers", "hidden-size", "num-attention-heads", "seq-length", "max-position-embeddings"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("micro-batch-size", "global-batch-size", "train-iters", "lr-decay-iters", "log-interval"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("save-interval", "eval-interval", "eval-iters", "tensor-model-parallel-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("lr", "min-lr", "weight-decay", "clip-grad", "lr-warmup-fraction"):
        parser.add_argument(f"--{name}", type=float, required=True)
    for name in ("save", "load", "vocab-file", "merge-file", "split", "lr-decay-style", "distributed-backend"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--data-path", nargs="*", required=True)
    parser.add_argument("--adam-betas", nargs=2, type=float, default=(0.9, 0.999))
    parser.add_argument("--fp16", action="store_true")
    return parser.parse_args()


def print_rank_0(message):
    if dist.get_rank() == 0:
        print(message, flush=True)


def main():
    args = parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    print(f"> setting up rank {rank} of {world}", flush=True)
    dist.init_process_group(backend=args.distributed_backend, world_size=world, rank=rank)
    size = args.tensor_model_parallel_size
    groups = [dist.new_group(range(i * size, i * size + size)) for i in range(world // size)]
    print_rank_0("------------------------ arguments ------------------------")
    for name, value in sorted(vars(args).items()):
        print_rank_0(f"  {name} {'.' * (48 - len(name))} {value}")
    print_rank_0("-------------------- end of arguments ---------------------")
    torch.manual_seed(1234)
    weight = torch.randn(args.hidden_size // size, args.hidden_size)
    for iteration in range(1, args.train_iters + 1):
        loss = (weight * 0.99**iteration).pow(2).mean().reshape(1)
        dist.all_reduce(loss, group=groups[rank // size])
        if iteration % args.log_interval == 0:
            print_rank_0(f" iteration {iteration:8d}/{args.train_iters:8d} | lm loss: {loss.item() / size:.6E} |")
        if iteration % args.save_interval == 0:
            folder = f"{args.save}/iter_{iteration:07d}/mp_rank_{rank % size:02d}"
            os.makedirs(folder, exist_ok=True)
            torch.save({"iteration": iteration, "model": weight}, f"{folder}/model_optim_rng.pt")
            dist.barrier()
            print_rank_0(f"  successfully saved checkpoint at iteration {iteration:7d} to {args.save}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
