"""One row a fault: what was expected of it beside what was seen."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from _pytest.outcomes import Failed

from tests.chaos.ground import Ground, Unexpected, until

HEADER = ("fault", "expected", "seen", "seconds", "code", "digests", "leftovers", "ok")


@dataclass(frozen=True)
class Seen:
    """What a fault came to. cause: the message, behind what kind of failure it is and whose."""

    code: int
    cause: str
    digests: str = "-"


@dataclass(frozen=True)
class Fault:
    """cause: a regular expression found in the seen one. settle: seconds in which hosts must have come to rest."""

    name: str
    play: Callable[[Ground], Seen]
    code: int
    cause: str
    digests: str = "-"
    settle: float = 30.0
    breaks: bool = False


@dataclass(frozen=True)
class Row:
    fault: Fault
    seen: Seen
    seconds: float
    leftovers: tuple[str, ...]

    @property
    def ok(self) -> bool:
        fault, seen = self.fault, self.seen
        return (
            seen.code == fault.code
            and bool(re.search(fault.cause, seen.cause, re.S))
            and not self.leftovers
            and seen.digests == fault.digests
        )

    def __str__(self) -> str:
        fault, seen = self.fault, self.seen
        cells = (
            fault.name,
            fault.cause,
            seen.cause if self.ok else seen.cause[:1500],
            f"{self.seconds:.1f}",
            both(str(fault.code), str(seen.code)),
            both(fault.digests, seen.digests),
            "; ".join(self.leftovers) or "none",
            "ok" if self.ok else "NOT OK",
        )
        return line(shorten(cell, 150 if self.ok else 1500) for cell in cells)


def both(expected: str, seen: str) -> str:
    return seen if expected == seen else f"{seen} (expected {expected})"


def shorten(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def line(cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"  # type: ignore[attr-defined]


def play(fault: Fault, ground: Ground) -> Row:
    """The fault on this ground, and the ground put right again."""
    here = head_now(ground)
    before = {host: (ground.processes(host), ground.paths(host)) for host in ground.names}
    began = time.monotonic()
    try:
        seen = fault.play(ground)
    except (Unexpected, AssertionError, Failed, OSError, ValueError, LookupError, subprocess.SubprocessError) as e:
        detail = e.stderr if isinstance(e, subprocess.CalledProcessError) else ""
        seen = Seen(-999, f"{type(e).__name__}: {e} {detail}")
    seconds = time.monotonic() - began
    # the hosts' names have the lab's in them: lab01 in the table, whatever it is
    seen = Seen(seen.code, *(text.replace(ground.lab.instance, "lab") for text in (seen.cause, seen.digests)))
    try:
        ground.undo.close()
        left = leftovers(fault, ground, before, here)
    except (Unexpected, Failed, OSError, subprocess.SubprocessError) as e:
        left = (f"the lab could not be put right: {e}",)
    return Row(fault, seen, seconds, left)


def head_now(ground: Ground) -> tuple[set[str], set[str]]:
    return ground.head_processes(), ground.head_paths()


def leftovers(
    fault: Fault, ground: Ground, before: dict[str, tuple[set[str], set[str]]], here: tuple[set[str], set[str]]
) -> tuple[str, ...]:
    """What is there now and was not before, once everything had its time to end; files that are no leftovers go."""
    found: list[str] = []

    def look() -> bool:
        found.clear()
        for name, now, then in zip(("process", "file"), head_now(ground), here, strict=True):
            found.extend(f"{name} on the head: {it}" for it in now - then)
        for host in ground.names:
            processes, paths = before[host]
            found.extend(f"process on {host}: {it}" for it in ground.processes(host) - processes)
            new = [p for p in ground.paths(host) - paths if not p.startswith(tuple(ground.made) or "\0")]
            found.extend(f"file on {host}: {it}" for it in sorted(new))
        return not found

    try:
        until(look, "leftovers to go", fault.settle)
    except Unexpected:
        return tuple(found)
    for host in ground.names:
        ground.lab.inside(host, "rm", "-rf", "/root/.fleet/runs", *ground.made)
    return ()
