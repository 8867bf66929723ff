"""The matrix of `fleet check`, drawn for a width. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fleet.cli.layout import GAP, wrap
from fleet.cli.output import clean, clean_lines
from fleet.cli.terminal import cells, pad
from fleet.rules.matrix import Cell, Matrix

FACT = "fact"


def draw(table: Matrix, width: int | None) -> list[str]:
    """What is the same for all hosts stands there once; deviating cells have an asterisk and a colour. Where columns
    do not fit side by side, the facts that differ have a line for each of them."""
    label_size = max(map(cells, (FACT, *(label for label, _ in table.rows))))
    room = None if width is None else width - label_size - len(GAP)
    titles = [clean(title) for title in table.titles]
    differing = [[_text(cell) for cell in row] for _, row in table.rows if not _alike(row)]
    sizes = _sizes([titles, *differing], room)
    lines = []
    if sizes:
        head = _row(
            FACT,
            label_size,
            [
                [click.style(part, bold=True) for part in wrap(title, size, 0)]
                for title, size in zip(titles, sizes, strict=True)
            ],
            sizes,
        )
        used = label_size + sum(len(GAP) + size for size in sizes)
        lines = [*head, "\u2500" * used]
    for label, row in table.rows:
        if _alike(row):
            lines += _row(label, label_size, [wrap(clean_lines(row[0].text), room, 0)], [0])
        elif sizes:
            lines += _row(label, label_size, [_shown(cell, size) for cell, size in zip(row, sizes, strict=True)], sizes)
        else:
            parts = [
                line
                for title, cell in zip(titles, row, strict=True)
                if cell.text
                for line in _shown(Cell(f"{title}: {cell.text}", cell.deviates), room)
            ]
            lines += _row(label, label_size, [parts], [0])
    return lines


def _alike(row: Sequence[Cell]) -> bool:
    """Whether it is said once: all say the same, or nothing but the first says anything."""
    return not any(cell.deviates for cell in row) and all(cell.text in ("", row[0].text) for cell in row)


def _text(cell: Cell) -> str:
    return ("* " if cell.deviates else "") + clean_lines(cell.text)


def _shown(cell: Cell, size: int | None) -> list[str]:
    """A cell's lines, broken between words."""
    lines = [part for line in _text(cell).split("\n") for part in wrap(line, size, 2)]
    return [click.style(line, fg="yellow", bold=True) for line in lines] if cell.deviates else lines


def _sizes(rows: Sequence[Sequence[str]], room: int | None) -> list[int] | None:
    """Each column's cells: what it needs, or less where it can break between words; None where that does not do."""
    columns = [[line for cell in column for line in cell.split("\n")] for column in zip(*rows, strict=True)]
    sizes = [max(map(cells, column)) for column in columns]
    least = [2 + max((cells(word) for line in column for word in line.split()), default=0) for column in columns]
    while room is not None and sum(sizes) + len(GAP) * (len(sizes) - 1) > room:
        wide = [i for i, size in enumerate(sizes) if size > least[i]]
        if not wide:
            return None
        sizes[max(wide, key=lambda i: sizes[i])] -= 1
    return sizes


def _row(label: str, label_size: int, parts: Sequence[Sequence[str]], sizes: Sequence[int]) -> list[str]:
    """A row's lines, as many as its tallest cell has."""
    lines = []
    for n in range(max(map(len, parts))):
        first = click.style(label, bold=True) if n == 0 else ""
        shown = [part[n] if n < len(part) else "" for part in parts]
        lines.append(GAP.join([pad(first, label_size), *map(pad, shown, sizes)]).rstrip())
    return lines
