"""Outputs that differ in a few lines: which lines, and who has what there. Pure; lines are bytes and stay so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from os.path import commonprefix

# what comparing may cost: the product of the lines that are not the same from the beginning or to the end
WORK = 2_000_000

Change = tuple[int, int, int]  # of the first output's lines: from, to; how many take their place


@dataclass(frozen=True)
class Hunk:
    """Lines `first` to `last` (exclusive, from 0) of the first output, and what takes their place, by output."""

    first: int
    last: int
    said: Mapping[int, tuple[bytes, ...]]

    @property
    def where(self) -> str:
        if self.last - self.first > 1:
            return f"lines {self.first + 1}-{self.last}"
        if self.last > self.first:
            return f"line {self.last}"
        return f"behind line {self.last}" if self.last else "before line 1"


def lines_of(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\n").split(b"\n")


def compare(outputs: Sequence[bytes]) -> tuple[list[int], list[Hunk]]:
    """(the outputs that are nearly the first one, where they differ): by their place in `outputs`, the first one, which
    is 0, not counted. Near is what is shorter as a difference than as a whole."""
    first = lines_of(outputs[0])
    near: dict[int, tuple[list[bytes], list[Change]]] = {}
    left = WORK
    for number, data in enumerate(outputs[1:], 1):
        other = lines_of(data)
        # the ends that are the same cost nothing
        before = len(commonprefix([first, other]))
        after = len(commonprefix([first[before:][::-1], other[before:][::-1]]))
        middle, its = first[before : len(first) - after], other[before : len(other) - after]
        left -= len(middle) * len(its)
        if b"\0" in data or b"\0" in outputs[0] or left < 0:
            continue
        steps = SequenceMatcher(None, middle, its, autojunk=False).get_opcodes()
        changes = [(i1 + before, i2 + before, j2 - j1) for kind, i1, i2, j1, j2 in steps if kind != "equal"]
        if sum(1 + end - begin + count for begin, end, count in changes) < len(other):
            near[number] = other, changes
    spans: list[list[int]] = []
    for begin, end in sorted({(begin, end) for _, changes in near.values() for begin, end, _ in changes}):
        if spans and begin <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([begin, end])
    versions = {0: (first, list[Change]())} | near
    return list(near), [Hunk(a, b, {n: _within(*versions[n], a, b) for n in versions}) for a, b in spans]


def _within(lines: Sequence[bytes], changes: Sequence[Change], first: int, last: int) -> tuple[bytes, ...]:
    """Returns what the others have in the place of the first output's lines `first` to `last`, which cut through no
    change."""
    before = sum(count - (end - begin) for begin, end, count in changes if begin < first)
    inside = sum(count - (end - begin) for begin, end, count in changes if first <= begin <= last)
    return tuple(lines[first + before : last + before + inside])
