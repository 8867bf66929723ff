"""What the fuzzers share: the loop that tries one seed after the other, and their command line."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

Say = Callable[[str], None]


def hunt(
    case: Callable[[int], str | None], first: int, seconds: float, most: int, say: Say, count: int = 0
) -> tuple[list[str], str]:
    """Tries seeds from `first` on, for so many seconds, or until `most` faults are found, or `count` seeds are tried.
    Returns the faults, and which seeds were tried. case: returns what is wrong with a seed, or None."""
    found, seed, began = list[str](), first, time.monotonic()
    while time.monotonic() - began < seconds and len(found) < most and (not count or seed - first < count):
        if (wrong := case(seed)) is not None:
            found.append(f"after {time.monotonic() - began:.1f} s, {wrong}")
            say(found[-1])
        seed += 1
    return found, f"seeds {first} to {seed - 1} in {time.monotonic() - began:.0f} s"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--seconds", type=float, default=60.0)
    made.add_argument("--seed", type=int, help="begin with this one [by the clock]")
    made.add_argument("--faults", type=int, default=1, help="stop after so many")
    made.add_argument("--one", type=int, help="this seed alone")
    return made


def run(given: argparse.Namespace, case: Callable[[int], str | None], hunts: Callable[[int, Say], list[str]]) -> int:
    """Does what the command line asks for. Returns the exit code: 1 where a fault was found."""
    if given.one is not None:
        wrong = case(given.one)
        print(wrong or f"seed {given.one}: nothing is wrong")
        return int(wrong is not None)
    first = given.seed if given.seed is not None else int(time.time())
    print(f"first seed {first}", flush=True)
    return int(bool(hunts(first, lambda text: print(text, flush=True))))
