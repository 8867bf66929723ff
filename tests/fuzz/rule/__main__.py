"""Histories of runs, drawn at random, held to a model: `python -m tests.fuzz.rule --seconds 60 --seed N`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

from tests.fuzz import hunting
from tests.fuzz.rule.draw import Attempt, History, make
from tests.fuzz.rule.drive import play
from tests.fuzz.rule.head import outcome
from tests.fuzz.rule.model import judge


def wrong_of(history: History) -> list[str]:
    """Returns what is wrong with how a history goes."""
    try:
        return judge(history, play(history))
    except Exception:
        return [traceback.format_exc()]


def shrunk(history: History) -> History:
    """Returns a shorter history that goes wrong as well."""
    tried = True
    while tried:
        tried = False
        for less in _less(history):
            if wrong_of(less):
                history, tried = less, True
                break
    return history


def _less(history: History) -> list[History]:
    found = []
    if len(history.attempts) > 1:
        found += [history._replace(attempts=history.attempts[:-1]), history._replace(attempts=history.attempts[1:])]
    for number, attempt in enumerate(history.attempts):
        for gone in range(len(attempt.events)):
            events = attempt.events[:gone] + attempt.events[gone + 1 :]
            found.append(history._replace(attempts=_with(history.attempts, number, attempt._replace(events=events))))
    simple: dict[str, Any] = {"slow": 0.0, "looks": False, "most": 0, "spares": 0, "late": ()}
    for name, value in simple.items():
        if getattr(history, name) != value:
            found.append(history._replace(**{name: value}))
    if any(history.clocks):
        found.append(history._replace(clocks=(0.0,) * len(history.clocks)))
    return found


def _with(attempts: tuple[Attempt, ...], number: int, attempt: Attempt) -> tuple[Attempt, ...]:
    return attempts[:number] + (attempt,) + attempts[number + 1 :]


def case(seed: int) -> str | None:
    """Returns what is wrong with a seed, and its history made short, or None."""
    wrong = wrong_of(make(seed))
    if not wrong:
        return None
    history = shrunk(make(seed))
    lines = [f"seed {seed}: {wrong[0]}", f"made short: {wrong_of(history)[0]}", str(history)]
    for played in play(history, tells=True).attempts:
        lines += [f"attempt {played.number}: {outcome(played.verdict)}", *(f"    {text}" for text in played.tale)]
    return "\n".join([*lines, f"again: python -m tests.fuzz.rule --one={seed}", ""])


def hunt(first: int, seconds: float, most: int, *, count: int = 0, say: Callable[[str], None] = print) -> list[str]:
    found, told = hunting.hunt(case, first, seconds, most, say, count)
    say(f"{told}: {len(found)} faults of the rule")
    return found


def main() -> int:
    parser = hunting.parser()
    parser.add_argument("--count", type=int, default=0, help="so many histories at most")
    given = parser.parse_args()
    return hunting.run(
        given, case, lambda first, say: hunt(first, given.seconds, given.faults, count=given.count, say=say)
    )


if __name__ == "__main__":
    sys.exit(main())
