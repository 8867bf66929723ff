"""Outputs that differ in a few lines: which lines, and who has what there. Pure; lines are bytes and stay so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

# what comparing may cost: the product of the lines that are not the same from the beginning or to the end
WORK = 2_000_000

Opcode = tuple[str, int, int, int, int]


@dataclass(frozen=True)
class Hunk:
    """Lines `first` to `last` (exclusive, from 0) of the first output, and what stands in their place, by output."""

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
    is 0, not counted. Near is what is shorter to tell as a difference than as a whole."""
    first = lines_of(outputs[0])
    near: dict[int, tuple[list[bytes], list[Opcode]]] = {}
    left = WORK
    for number, data in enumerate(outputs[1:], 1):
        other = lines_of(data)
        before, after = _ends(first, other)
        left -= (len(first) - before - after) * (len(other) - before - after)
        if b"\0" in data or b"\0" in outputs[0] or left < 0:
            continue
        steps = _steps(first, other, before, after)
        if sum(1 + i2 - i1 + j2 - j1 for kind, i1, i2, j1, j2 in steps if kind != "equal") < len(other):
            near[number] = other, steps
    spans: list[list[int]] = []
    for i1, i2 in sorted({(i1, i2) for _, steps in near.values() for kind, i1, i2, _, _ in steps if kind != "equal"}):
        if spans and i1 <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], i2)
        else:
            spans.append([i1, i2])
    return list(near), [
        Hunk(
            i1,
            i2,
            {0: tuple(first[i1:i2])}
            | {number: _within(other, steps, i1, i2) for number, (other, steps) in near.items()},
        )
        for i1, i2 in spans
    ]


def _ends(one: Sequence[bytes], other: Sequence[bytes]) -> tuple[int, int]:
    """How many lines are the same from the beginning, and of the rest up to the end."""
    most = min(len(one), len(other))
    before = next((n for n in range(most) if one[n] != other[n]), most)
    after = next((n for n in range(most - before) if one[-1 - n] != other[-1 - n]), most - before)
    return before, after


def _steps(one: Sequence[bytes], other: Sequence[bytes], before: int, after: int) -> list[Opcode]:
    """difflib's opcodes, the equal ends left out of its work."""
    middle = SequenceMatcher(None, one[before : len(one) - after], other[before : len(other) - after], autojunk=False)
    steps = [(kind, *(n + before for n in span)) for kind, *span in middle.get_opcodes()]
    ends = [("equal", 0, before, 0, before), ("equal", len(one) - after, len(one), len(other) - after, len(other))]
    return [ends[0], *steps, ends[1]]  # type: ignore[list-item]


def _within(other: Sequence[bytes], steps: Sequence[Opcode], first: int, last: int) -> tuple[bytes, ...]:
    """What `other` has in the place of the lines `first` to `last`."""
    found: list[bytes] = []
    for kind, i1, i2, j1, j2 in steps:
        if kind == "equal":
            low, high = max(i1, first), min(i2, last)
            found += other[j1 + low - i1 : j1 + high - i1] if low < high else ()
        elif first <= i1 and i2 <= last:
            found += other[j1:j2]
    return tuple(found)
