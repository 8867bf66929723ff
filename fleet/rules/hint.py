"""Defines a hint: a rule that explains an uncaught exception, or a line of the kernel's log."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Hint:
    """Explains a text. pattern: a regular expression, searched with MULTILINE in an uncaught exception's type and text
    (see ended.py), or in a line of the kernel's log. remedy: the next step; meaning: a clause. In both, \\1 stands for
    the pattern's first group; in a command, 'fleet ...', its text is quoted. worked_out: returns the remedy for a
    match, if it depends on the match. collateral: a rank shows this because another one died; it is not the root cause.
    unfit: the host needs a repair before another run.

    These are for the kernel's log only. signals, lines: the line explains a rank that died of one of these signals, or
    whose last lines match `lines`. sudden: what the line reports ends a process at once, so it explains no later end.
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


_COMMAND = re.compile(r"('fleet [^']*')")
_GROUP = re.compile(r"\\(?:(\d)|g<(\d)>)")


def _filled(remedy: str, found: re.Match[str]) -> str:
    def group(it: re.Match[str]) -> str:
        return found[int(it[1] or it[2])] or ""

    def quoted(it: re.Match[str]) -> str:
        return group(it) and shlex.quote(group(it))

    parts = enumerate(_COMMAND.split(remedy))  # those with odd numbers are commands
    return "".join(_GROUP.sub(quoted if n % 2 else group, part) for n, part in parts)


def first_match(hints: Iterable[Hint], text: str) -> Hint | None:
    """Returns the first hint that matches, with its remedy and its meaning filled in."""
    for hint in hints:
        if found := re.search(hint.pattern, text, re.MULTILINE):
            remedy = hint.worked_out(found) if hint.worked_out else _filled(hint.remedy, found)
            return replace(hint, remedy=remedy, meaning=found.expand(hint.meaning))
    return None
