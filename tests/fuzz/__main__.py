"""`make fuzz S=600`: the fuzzers, one after the other."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz import ignore, sync_model


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, help="begin with this one [by the clock]")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else int(time.time())
    say(f"seed {seed}")
    failed = ignore.fuzz(given.seconds / 10, seed)
    say(ignore.summary(*failed, seed))
    return int(bool(failed[1]) | bool(sync_model.hunt(seed, given.seconds * 0.9, 5, say=say)))


if __name__ == "__main__":
    sys.exit(main())
