"""`make fuzz S=600`: all fuzzers, one after the other. Ends with 1 where one of them found something."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable

from tests.fuzz import handed, hostile, ignore, keys, neighbour, requirements, sync_model

MOST = 5  # faults of one fuzzer, made short


def say(text: str) -> None:
    print(text, flush=True)


def _ignore(seconds: float, seed: int) -> bool:
    count, failed = ignore.fuzz(seconds, seed)
    say(ignore.summary(count, failed, seed))
    return not failed


def _raises(run: Callable[..., None], *args: object) -> bool:
    """Of those that end with the first fault."""
    try:
        run(*args)
        return True
    except Exception:
        say(traceback.format_exc())
        return False


# the part of the time that each has
FUZZERS: dict[str, tuple[float, Callable[[float, int], bool]]] = {
    "syncs": (0.35, lambda seconds, seed: not sync_model.hunt(seed, seconds, MOST, say=say)),
    "nodes that lie": (0.25, lambda seconds, seed: not hostile.hunt(seed, seconds, MOST, say=say)),
    "keys that a node claims": (0.05, lambda seconds, seed: not keys.hunt(seed, seconds, MOST, say=say)),
    "ignore rules": (0.08, _ignore),
    "requirements": (0.04, lambda seconds, seed: _raises(requirements.run, seconds, seed)),
    "a neighbour": (0.08, lambda seconds, seed: _raises(neighbour.run, seconds, seed, say)),
    "handed folders": (0.15, lambda seconds, seed: not handed.hunt(seed, seconds, MOST, say=say)),
}
OF_ROOT = {"a neighbour": "another uid", "handed folders": "another uid", "keys that a node claims": "an sshd"}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, help="begin with this one [by the clock]")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else int(time.time())
    fine = True
    for name, (part, fuzzer) in FUZZERS.items():
        if name in OF_ROOT and os.geteuid() != 0:
            say(f"{name}: not looked for, {OF_ROOT[name]} takes root")
            continue
        say(f"{name}: {part * given.seconds:.0f} s from seed {seed} on")
        fine &= fuzzer(part * given.seconds, seed)
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
