"""To the shape of pytorch, test/distributed/elastic/multiprocessing/bin/echo1.py: scripts that its agent starts."""

import argparse
import ctypes
import os
import sys

from torch.distributed.elastic.multiprocessing.errors import record


def segfault():
    ctypes.string_at(0)


@record
def main():
    parser = argparse.ArgumentParser(description="test binary, exits with exitcode")
    parser.add_argument("--raises", default=False, action="store_true")
    parser.add_argument("--segfault", default=False, action="store_true")
    parser.add_argument("--exitcode", type=int, default=0)
    parser.add_argument("msg", type=str)
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    exitcode = args.exitcode
    if exitcode != 0:
        print(f"exit {exitcode} from {rank}", file=sys.stderr)
        sys.exit(exitcode)
    elif args.segfault:
        print(f"segfault from {rank}")
        segfault()
    elif args.raises:
        raise RuntimeError(f"raised from {rank}")
    else:
        print(f"{args.msg} stdout from {rank}")
        print(f"{args.msg} stderr from {rank}", file=sys.stderr)


if __name__ == "__main__":
    main()
