"""Lays out text for a width in cells: lines broken only at blanks, and tables that show repeated values once. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import zip_longest

import click

from fleet.cli.screen.terminal import cells, cut, pad

# 'fleet exec -- true' is one token, so that a line to copy stays on one line
_TOKEN = re.compile(r"[(\[]?'[^']*'(?=[\s.,;:)\]]|$)\S*|\S+")
_LABEL = re.compile(r"\s*([a-z]+: +)?")
_COMMAND = re.compile(r"\s*(hint: |\$ )?([A-Z_]+=\S+ )*(fleet|ssh|ssh-\w+|pip|apt|sudo) ")
GAP = "  "
LEAST = 16  # a shorter piece of a text is of no use
_GLUE = "\ue000"  # a blank inside an item


def wrap(line: str, width: int | None, indent: int | None = None) -> list[str]:
    """Returns the line in pieces of at most `width` cells, broken at blanks; a piece without blanks stays whole. A
    command gets backslashes, so that it can be copied. indent: the cells before each piece after the first. None
    aligns them with the text after a label such as "error: "; without a label, it adds two cells to the line's own."""
    plain = click.unstyle(line)
    if width is None or cells(plain) <= width:
        return [line]
    tail = " \\" if _COMMAND.match(plain) else ""
    width -= len(tail)
    if indent is None:
        label = _LABEL.match(plain)
        assert label is not None
        indent = label.end() if label.group(1) else label.end() + 2
    lead = line[: len(line) - len(line.lstrip(" "))]
    pieces, now, at = [], lead, len(lead)
    for token in _TOKEN.finditer(line, at):
        blanks = line[at : token.start()]
        if now.strip() and cells(now + blanks + token.group()) > width:
            pieces.append(now + tail)
            now, blanks = " " * indent, ""
        now += blanks + token.group()
        at = token.end()
    return [*pieces, now]


def items(lead: str, pairs: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """Returns lines like "all hosts: user root, port 22". A line breaks only between items, except inside an item that
    is wider than a line."""
    texts = [f"{name} {value}" for name, value in pairs]
    glued = [text.replace(" ", _GLUE) if width is None or cells(text) + 5 <= width else text for text in texts]
    return [line.replace(_GLUE, " ") for line in wrap(lead + ", ".join(glued), width, 4)]


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    keys: int = 1,
    right: Collection[str] = (),
    once: str = "",
    shorten: bool = False,
) -> list[str]:
    """Returns rows in aligned columns, without columns that are empty in every row. Cells may hold several lines.

    keys: how many columns, from the left, identify a row; they always stay. once: if a later column has the same value
    in all of several rows, a line below the table shows the value instead. The line begins with this text. shorten: the
    last column may be cut. If the table is still wider than `width`, each row becomes a paragraph."""
    all_of_them = [(title, [row[i] for row in rows]) for i, title in enumerate(titles)]
    columns = [c for i, c in enumerate(all_of_them) if i < keys or any(c[1])]
    same: list[tuple[str, str]] = []
    if once and len(rows) > 1:
        same = [(title.lower(), column[0]) for title, column in columns[keys:] if len(set(column)) == 1]
        columns = [c for i, c in enumerate(columns) if i < keys or len(set(c[1])) > 1]
    below = items(f"{once}: ", same, width) if same else []
    sizes = [max(cells(line) for cell in (title, *column) for line in cell.split("\n")) for title, column in columns]
    over = 0 if width is None else sum(sizes) + len(GAP) * (len(sizes) - 1) - width
    if shorten and over > 0 and sizes[-1] - over >= LEAST and len(columns) > keys:
        sizes[-1] -= over
        columns[-1] = columns[-1][0], [cut(cell, sizes[-1], "...") for cell in columns[-1][1]]
    elif width is not None and over > 0:
        return [
            line
            for row in zip(*(column for _, column in columns), strict=True)
            for line in _paragraph([title for title, _ in columns], row, keys, width)
        ] + below
    ends = [title in right for title, _ in columns]
    rows_of_cells = zip(*([title, *column] for title, column in columns), strict=True)
    return [line for row in rows_of_cells for line in in_columns([c.split("\n") for c in row], sizes, ends)] + below


def in_columns(row: Sequence[Sequence[str]], sizes: Sequence[int], ends: Sequence[bool] | None = None) -> list[str]:
    """Returns a row of cells, each of several lines, in columns of these sizes. ends: which columns are flush right."""
    ends = ends or [False] * len(sizes)
    return [
        GAP.join(pad(cell, size, right=end) for cell, size, end in zip(line, sizes, ends, strict=True)).rstrip()
        for line in zip_longest(*row, fillvalue="")
    ]


def _paragraph(titles: Sequence[str], row: Sequence[str], keys: int, width: int) -> list[str]:
    """Returns "0  gpu01" and below it, indented, "address 203.0.113.10, user root, ..."."""
    head = GAP.join(cell for cell in row[:keys] if cell)
    rest = [(title.lower(), " ".join(cell.split())) for title, cell in zip(titles, row, strict=True)]
    filled = [(title, cell) for title, cell in rest[keys:] if cell]
    return [*wrap(head, width, 4), *(items("    ", filled, width) if filled else [])]
