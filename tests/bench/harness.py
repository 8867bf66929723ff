"""Side-by-side timing: contestants take turns, so that whatever the machine does meanwhile hits all of them.

Wall times do not carry over to another machine; ratios of runs that stood next to each other nearly do. So
each round runs every contestant once, in an order that rotates, and the ratios are taken within rounds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

RUN_LIMIT = 600.0  # seconds after which one run counts as failed; a star of 256 MiB to 16 nodes takes half of it


@dataclass(frozen=True)
class Done:
    """What a run gave: its exit status and everything it wrote."""

    status: int
    output: str


@dataclass
class Contestant:
    """run() is timed. check(done) says what is wrong with its result, or None; it is not timed.

    missing: why it cannot run here; it is then named in the table, not left out. once: it takes minutes, and has one
    round, without the unmeasured one before it.
    """

    name: str
    run: Callable[[], Done]
    check: Callable[[Done], str | None]
    missing: str | None = None
    once: bool = False
    seconds: list[float] = field(default_factory=list)
    failure: str | None = None


def command(argv: Sequence[str], env: dict[str, str] | None = None, cwd: str | None = None) -> Callable[[], Done]:
    """A run() that starts argv and waits for it."""

    def run() -> Done:
        try:
            done = subprocess.run(
                list(argv),
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=RUN_LIMIT,
            )
        except subprocess.TimeoutExpired:
            return Done(124, f"no end within {RUN_LIMIT:g} s")
        return Done(done.returncode, done.stdout + done.stderr)

    return run


def race(title: str, contestants: Sequence[Contestant], rounds: int) -> None:
    """Fill in `seconds`; one unmeasured round first, in which files and caches get warm and mistakes show."""
    for turn in range(-1, rounds):
        able = [c for c in contestants if not c.missing and not c.failure and (turn == 0 or not c.once)]
        shift = turn % len(able) if able else 0
        for contestant in able[shift:] + able[:shift]:
            if sys.stderr.isatty():
                print(f"\r{title}: round {turn + 1}/{rounds}, {contestant.name}\033[K", end="", file=sys.stderr)
                sys.stderr.flush()
            began = time.perf_counter()
            done = contestant.run()
            seconds = time.perf_counter() - began
            contestant.failure = contestant.check(done)
            if contestant.failure is None and turn >= 0:
                contestant.seconds.append(seconds)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def ratios(own: Contestant, peer: Contestant) -> list[float]:
    """own / peer of each round that both have run."""
    return [a / b for a, b in zip(own.seconds, peer.seconds, strict=False)]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """ "median (min-max)"."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def table(title: str, own: Contestant, peers: Sequence[Contestant], aims: dict[str, float]) -> str:
    """A markdown table: seconds, and own/peer within rounds, each as median (min-max)."""
    lines = [f"### {title}", "", f"| | seconds | {own.name} / it | aim |", "| --- | --- | --- | --- |"]
    for contestant in [own, *peers]:
        aim = f"< {aims[contestant.name]:g}" if contestant.name in aims else ""
        if contestant.missing or contestant.failure or not contestant.seconds:
            why = f"missing: {contestant.missing}" if contestant.missing else f"failed: {contestant.failure}"
            lines.append(f"| {contestant.name} | {why} | | {aim} |")
            continue
        ratio = "1" if contestant is own else spread(ratios(own, contestant)) if own.seconds else ""
        if aim and ratio:
            aim += " met" if statistics.median(ratios(own, contestant)) < aims[contestant.name] else " not met"
        lines.append(f"| {contestant.name} | {spread(contestant.seconds, 3)} | {ratio} | {aim} |")
    return "\n".join(lines) + "\n"


def record(title: str, own: Contestant, peers: Sequence[Contestant], aims: dict[str, float]) -> dict[str, object]:
    """The same as JSON."""
    return {
        "title": title,
        "aims": aims,
        "contestants": {
            c.name: {"seconds": c.seconds, "ratios": ratios(own, c), "missing": c.missing, "failure": c.failure}
            for c in [own, *peers]
        },
    }
