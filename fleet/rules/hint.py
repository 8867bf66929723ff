"""A rule of what an uncaught exception means, for the tables of hints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Hint:
    """One rule. pattern: a regular expression, searched with MULTILINE in the uncaught exception's type and text, see
    ended.py. remedy: \\1 is the pattern's first group. worked_out: makes the remedy of the match, where it is not
    always the same. collateral: a rank shows it because another one died, and is not the first failure's cause. unfit:
    the host is not fit for another run as it is."""

    pattern: str
    remedy: str
    collateral: bool = False
    worked_out: Callable[[re.Match[str]], str] | None = None
    unfit: bool = False


def first_match(hints: Iterable[Hint], text: str) -> Hint | None:
    for hint in hints:
        found = re.search(hint.pattern, text, re.MULTILINE)
        if found:
            remedy = hint.worked_out(found) if hint.worked_out else found.expand(hint.remedy)
            return Hint(hint.pattern, remedy, hint.collateral, unfit=hint.unfit)
    return None
