"""Shows the outputs of many hosts. Equal outputs are shown once. If outputs differ only in a few lines, it shows these
lines and their hosts. Lines are compared as bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from os.path import commonprefix
from typing import TextIO

import click

from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean_output, echo, fold, groups_by
from fleet.model import Result, grouped
from fleet.spool import Spooled, pieces

LINE_LIMIT = 1 << 20  # a longer line is shown in pieces
# limit of a comparison: the product of the two outputs' lines, without equal ones at the beginning and the end
WORK = 2_000_000

Change = tuple[int, int, int]  # lines of the first output that differ (first, end); how many lines replace them


@dataclass(frozen=True)
class Hunk:
    """Holds lines `first` to `last` (exclusive, from 0) of the first output. texts: output -> its lines in that
    place."""

    first: int
    last: int
    texts: Mapping[int, tuple[bytes, ...]]

    @property
    def where(self) -> str:
        if self.last - self.first > 1:
            return f"lines {self.first + 1}-{self.last}"
        if self.last > self.first:
            return f"line {self.last}"
        return f"after line {self.last}" if self.last else "before line 1"


def lines_of(data: bytes) -> list[bytes]:
    return data.removesuffix(b"\n").split(b"\n")


def compare(outputs: Sequence[bytes]) -> tuple[list[int], list[Hunk]]:
    """Returns (the outputs that are near the first one, the places where they differ). Outputs are indexes in
    `outputs`; the first one, 0, is not listed. An output is near the first one if its difference takes fewer lines than
    the output itself."""
    first = lines_of(outputs[0])
    near: dict[int, tuple[list[bytes], list[Change]]] = {}
    left = WORK
    for number, data in enumerate(outputs[1:], 1):
        other = lines_of(data)
        # equal lines at the beginning and the end need no comparison
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
    """Returns an output's lines in the place of the first output's lines `first` to `last`. The range contains each
    change as a whole, or nothing of it."""
    before = sum(count - (end - begin) for begin, end, count in changes if begin < first)
    inside = sum(count - (end - begin) for begin, end, count in changes if first <= begin <= last)
    return tuple(lines[first + before : last + before + inside])


def header(names: Sequence[str], more: str = "") -> str:
    count = f" ({len(names)})" if len(names) > 1 else ""
    return click.style(f"--- {fold(names)}{count}{more} ---", bold=True)


def write_folded(results: Iterable[Result], stream: str) -> None:
    """Prints stdout (or stderr) of all hosts: equal outputs once under their node set. Of outputs that differ in a few
    lines from the most frequent one, it prints these lines."""
    out = sys.stdout if stream == "stdout" else sys.stderr
    by_output = {data: names for data, names in groups_by(results, lambda r: getattr(r, stream)).items() if data}
    groups = list(by_output.items())
    most = max(range(len(groups)), key=lambda i: len(groups[i][1]), default=0)
    groups = [*groups[most : most + 1], *groups[:most], *groups[most + 1 :]]
    # an output that is not in memory is not compared, and neither is one that is no text
    small = [data if isinstance(data, bytes) else b"\0" for data, _ in groups]
    near, hunks = compare(small) if len(groups) > 1 else ([], [])
    blocks: list[tuple[str, bytes | Spooled]] = [
        (header(names), data) for i, (data, names) in enumerate(groups) if i not in near
    ]
    if near:
        who = {i: groups[i][1] for i in (0, *near)}
        others = [name for i in near for name in who[i]]
        title = header(others, f", where {'they differ' if len(others) > 1 else 'it differs'} from {fold(who[0])}")
        blocks.insert(1, (title, differences(hunks, who)))
    for title, data in blocks:
        with terminal.aside():
            echo(title, err=out is sys.stderr)
            last = b""
            for last in filter(None, shown(data, out)):
                out.buffer.write(last)
            out.buffer.write(b"" if last.endswith(b"\n") else b"\n")
            out.buffer.flush()


def shown(data: bytes | Spooled, out: TextIO) -> Iterator[bytes]:
    """Yields the pieces of an output unchanged. If `out` is a terminal they are whole lines, and cleaned."""
    if not terminal.interactive(out):
        yield from pieces(data)
        return
    rest, colours = b"", terminal.colored(out)
    for piece in pieces(data):
        lines, end, rest = (rest + piece).rpartition(b"\n")
        if len(rest) > LINE_LIMIT:
            lines, end, rest = lines + end + rest, b"", b""
        yield clean_output((lines + end).decode("utf-8", "replace"), colours).encode()
    yield clean_output(rest.decode("utf-8", "replace"), colours).encode()


def differences(hunks: Iterable[Hunk], who: Mapping[int, Sequence[str]]) -> bytes:
    """Returns each place where the outputs differ, with the lines of the hosts there."""
    lines: list[bytes] = []
    for hunk in hunks:
        by_text = grouped((text, name) for number, text in hunk.texts.items() for name in who[number])
        named = {text: fold(names) for text, names in by_text.items()}
        size = min(24, max(map(terminal.cells, named.values())) + 1)
        lines.append(f"{hunk.where}:".encode())
        for text, names in named.items():
            lines += [f"  {terminal.pad(f'{names}:', size)} ".encode() + line for line in text]
            lines += [] if text else [f"  {names} {'have' if len(by_text[text]) > 1 else 'has'} nothing there".encode()]
    return b"\n".join(lines)
