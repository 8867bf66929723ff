"""A rule of what an uncaught exception, or a line of the kernel's log, means; for the tables of hints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Hint:
    """One rule. pattern: a regular expression, searched with MULTILINE in the uncaught exception's type and text, see
    ended.py, or in a line of the kernel's. remedy: \\1 is the pattern's first group; so it is in meaning, a clause.
    worked_out: makes the remedy of the match, where it is not always the same. collateral: a rank shows it because
    another one died, and is not the first failure's cause. unfit: the host is not fit for another run as it is.

    Of the kernel's, signals, lines: what it explains, a rank that died of one of these, or whose last lines match.
    sudden: it ends a process at once, and explains nothing that ends much later.
    """

    pattern: str
    remedy: str
    meaning: str = ""
    collateral: bool = False
    worked_out: Callable[[re.Match[str]], str] | None = None
    unfit: bool = False
    signals: tuple[int, ...] = ()
    lines: str = r"(?!)"
    sudden: bool = False


def first_match(hints: Iterable[Hint], text: str) -> Hint | None:
    """Returns the first that matches, its remedy and its meaning filled in."""
    for hint in hints:
        if found := re.search(hint.pattern, text, re.MULTILINE):
            remedy = hint.worked_out(found) if hint.worked_out else found.expand(hint.remedy)
            return replace(hint, remedy=remedy, meaning=found.expand(hint.meaning))
    return None
