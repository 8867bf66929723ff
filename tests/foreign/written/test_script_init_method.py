"""To the shape of pytorch, test/distributed/launcher/bin/test_script_init_method.py: gloo by an address of options."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

parser = argparse.ArgumentParser(description="test script")
parser.add_argument("--init-method", "--init_method", type=str, required=True)
parser.add_argument("--is-torchelastic-launched-out-file", type=str, required=True)


def main():
    args = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    init_method = args.init_method.replace("@", f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
    dist.init_process_group(backend="gloo", init_method=init_method, world_size=world_size, rank=rank)
    out = f"{args.is_torchelastic_launched_out_file}{rank}"
    with open(out, "w") as f:
        f.write(str(dist.is_torchelastic_launched()))
    t = F.one_hot(torch.tensor(rank), num_classes=world_size)
    dist.all_reduce(t)
    print(f"one hots {t.tolist()}, role {os.environ.get('ROLE_RANK', '-')} of {os.environ.get('ROLE_WORLD_SIZE', '-')}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
