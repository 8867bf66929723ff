"""Groups errors of many hosts by cause, with the hosts of each. Details that differ between hosts are folded. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fleet.errors import Reason, fill
from fleet.inventory.nodeset import fold
from fleet.model import grouped
from fleet.rules.units import few

Whose = TypeVar("Whose")
FOLDED_LENGTH = 60
FEW = 3
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:%-]{0,200}")
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,9})?")


@dataclass(frozen=True)
class Cause(Generic[Whose]):
    """A cause of errors. whose: the hosts (or other owners) that have it, in the given order. message, hint: one text
    for all of them."""

    whose: list[Whose]
    message: str
    hint: str | None = None


def by_cause(found: Iterable[tuple[Whose, str, str | None]]) -> list[Cause[Whose]]:
    """Groups the (owner, message, hint) of many errors by cause, in order of first appearance."""
    groups = grouped((tuple(getattr(text, "template", text) for text in one[1:]), one) for one in found)
    return [
        Cause(
            [whose for whose, _, _ in group],
            together([message for _, message, _ in group]),
            together([hint for _, _, hint in group if hint], copied=True) or None,
        )
        for group in groups.values()
    ]


def together(texts: Sequence[str], *, copied: bool = False) -> str:
    """Returns the texts of one cause as one text; "" for none. A detail that differs becomes a node set, a range, or
    the first few values. A detail called "hosts" holds node sets; all of their hosts stay in the text.
    copied: the text is a line to copy. A detail then becomes a whole node set; if its values are no names, the first
    value stands as an example."""
    reasons = [text for text in texts if isinstance(text, Reason)]
    if not reasons:
        return texts[0] if texts else ""
    details = {}
    for name in reasons[0].details:
        values = list(dict.fromkeys(reason.details[name] for reason in reasons))
        details[name] = fold(values) if name == "hosts" else _example(values) if copied else _join(values)
    return fill(reasons[0].template, details)


def _example(values: list[str]) -> str:
    return fold(values) if all(_NAME.fullmatch(value) for value in values) else values[0]


def _join(values: list[str]) -> str:
    """Joins the distinct values of one detail. "10.0.0.1 port 22" and "10.0.0.2 port 22" differ in one token; only that
    one is folded."""
    rows = [value.split(" ") for value in values]
    if len({len(row) for row in rows}) == 1 and not any(", " in value for value in values):
        columns = [list(dict.fromkeys(column)) for column in zip(*rows, strict=True)]
        if sum(len(column) > 1 for column in columns) == 1:
            return " ".join(_joined(column) for column in columns)
    return _joined(values)


def _joined(values: list[str]) -> str:
    if len(values) > FEW and all(_NUMBER.fullmatch(value) for value in values):
        return f"{min(values, key=float)} to {max(values, key=float)}"
    if len(values) > 1 and all(_NAME.fullmatch(v) and not _NUMBER.fullmatch(v) for v in values):
        folded = fold(values)
        if len(folded) <= FOLDED_LENGTH:
            return folded
    return few(values, FEW)
