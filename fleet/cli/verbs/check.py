"""Runs `fleet check`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleet.cli.context import perform
from fleet.cli.inventory import load_inventory
from fleet.cli.line.command import Verb
from fleet.cli.line.hints import proposed
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import Named, common_options, request_options
from fleet.cli.run.report import html_option
from fleet.cli.screen import terminal
from fleet.cli.screen.layout import GAP, in_columns, wrap
from fleet.cli.screen.network import check_page, lines_of, speeds_of
from fleet.cli.screen.output import clean, clean_lines, echo, fold
from fleet.cli.screen.terminal import cells
from fleet.engines import ENGINES
from fleet.errors import FleetError
from fleet.inventory.find import decode, read
from fleet.inventory.write import entry
from fleet.model import Inventory, Report
from fleet.own import write_given
from fleet.requests.hosts import Check
from fleet.rules.matrix import Cell, Matrix, matrix
from fleet.rules.units import counted

if TYPE_CHECKING:
    from fleet.api import Fleet, Planned
    from fleet.ops.check import Checked
    from fleet.rules.causes import Cause
    from fleet.rules.rule import Finding

COLORS = {"error": "red", "warning": "yellow", "info": "cyan"}
COLUMN_WIDTH = 26  # cells of a column, from which the number of columns follows
FACT = "fact"
PIPE_WIDTH = 160  # cells for the columns, if no terminal limits them


@click.command("check", cls=Verb, examples=("fleet check", "fleet check -w @a100 -v"))
@request_options(Check, "timeout", "engine", "network", "bench", engine={"type": Named(ENGINES), "show_default": True})
@html_option
@common_options
def check(html: Path | None, **given: Any) -> int:
    """Compare the hosts' environments; each finding with its remedy. What is an error here, 'fleet launch' refuses.

    Exit: 123 when something would keep a run from starting or spoil it, 122 when a host cannot be reached.
    """
    from fleet.ops.check import Checked

    settings = settings_of()

    def show(checked: Report) -> None:
        assert isinstance(checked, Checked)
        shown = screen(checked, width=terminal.width(sys.stdout), quiet=settings.quiet, verbose=settings.verbose > 0)
        if shown:
            echo(shown.removesuffix("\n"), wrap=False)
        diff = [] if settings.quiet else proposal(checked)
        if diff:
            echo(
                "this data_address is better, another network is faster or the present one closed; nothing is written:"
            )
            for line in diff:
                echo(clean(line), wrap=False)

    def plan(fleet: Fleet) -> Planned:
        planned = fleet.plan.check(**given)
        return replace(planned, work=lambda runtime: written(planned.work(runtime)))

    def written(checked: Report) -> Report:
        assert isinstance(checked, Checked)
        if html:
            severities = [finding.severity for finding in checked.findings]
            text = check_page(checked, summary(checked, severities, 0), proposal(checked))
            write_given(html.parent, {html.name: text.encode()}, "--html FILE")
        return checked

    return perform(plan, show, requested=True)


def screen(checked: Checked, *, width: int | None = None, quiet: bool = False, verbose: bool = False) -> str:
    """Returns the text of `fleet check`: the matrix, hosts without facts, the findings, and a summary line. width:
    cells of the terminal; None for no limit."""
    from fleet.rules.judge import by_cause_and_severity

    lines: list[str] = []
    if checked.views and not quiet:
        most = max(2, ((width or PIPE_WIDTH) - 20) // COLUMN_WIDTH)
        lines += [*draw(matrix(checked.views, most), width), ""]
        lines += [*lines_of(checked), *speeds_of(checked.views)]
    silent = [result.host for result in checked.results if not result.ok]
    if silent:
        text = click.style(f"not compared: {clean(fold(silent))}", fg="red") + " (no facts: see below)"
        lines += wrap(text, width)
    found = by_cause_and_severity(checked.findings)
    severities = ("error",) if quiet else COLORS if verbose else ("error", "warning")
    shown = [cause for severity, cause in found if severity in severities]
    lines += [line for cause in shown for line in describe(cause, width)]
    for _, cause in by_cause_and_severity(checked.silenced) if not quiet else ():
        lines += wrap(f"silenced: {clean(' '.join(cause.message.split()))}  [{cause.whose[0].id}]", width, 8)
    if not quiet:
        lines.append(summary(checked, [severity for severity, _ in found], len(found) - len(shown)))
    return "".join(f"{line}\n" for line in lines)


def proposal(checked: Checked, inventory: Inventory | None = None) -> list[str]:
    """Returns the inventory's changes for a better network, as a diff; as single lines if no diff is possible.
    inventory: the one to change; None for that of the command line, which is read only if there is a change."""
    found = checked.measured.proposed
    if not found:
        return []
    inventory = inventory or load_inventory()
    from fleet.ops.init.choose import difference, proposed

    better = (replace(host, data_address=found.get(host.name, host.data_address)) for host in inventory.hosts)
    path, meant = Path(inventory.source), replace(inventory, hosts=tuple(better))
    try:
        old = decode(read(path, inventory.source), inventory.source)
        new, left = proposed(path, old, meant, (), {})
    except FleetError:  # it is no file of YAML
        new, left = "", {"": {}}
    return [entry(name, {"data_address": it}) for name, it in found.items()] if left else difference(path, old, new)


def describe(cause: Cause[Finding], width: int | None) -> list[str]:
    """Returns the lines about what one rule found, with the remedy below."""
    finding = cause.whose[0]
    severity = click.style(f"{finding.severity:7}", fg=COLORS[finding.severity], bold=True)
    message = clean(" ".join(cause.message.split()))
    lead = " " * 8
    return [
        *wrap(f"{severity} {message}  [{finding.id}]", width, len(lead)),
        *wrap(lead + clean(proposed(cause.hint) or ""), width, len(lead)),
    ]


def summary(checked: Checked, severities: Sequence[str], hidden: int) -> str:
    """Returns "4 hosts compared: 1 error, 2 warnings"."""
    if not checked.views:
        return "no host reported its facts: nothing was compared"
    counts = [(s, severities.count(s)) for s in COLORS]
    text = ", ".join(f"{n} {s}{'s' if n != 1 and s != 'info' else ''}" for s, n in counts if n) or "nothing to report"
    more = "; -v shows all" if hidden else ""
    return f"{counted(len(checked.views), 'host')} compared: {text}{more}"


# -- the matrix, for a width ----------------------------------------------------------------------------------------
def draw(table: Matrix, width: int | None) -> list[str]:
    """Returns the lines of the matrix. A value that is the same on all hosts is there once; deviating cells have an
    asterisk and a colour. If the columns do not fit side by side, a fact that differs has a line for each column."""
    label_size = max(map(cells, (FACT, *(label for label, _ in table.rows))))
    room = None if width is None else width - label_size - len(GAP)
    titles = [clean(title) for title in table.titles]
    differing = [[_text(cell) for cell in row] for _, row in table.rows if not _alike(row)]
    sizes = _sizes([titles, *differing], room)
    lines = []
    if sizes:
        bold = [
            [click.style(part, bold=True) for part in wrap(title, size, 0)]
            for title, size in zip([FACT, *titles], [label_size, *sizes], strict=True)
        ]
        used = label_size + sum(len(GAP) + size for size in sizes)
        lines = [*in_columns(bold, [label_size, *sizes]), "\u2500" * used]
    for label, row in table.rows:
        fact = [click.style(label, bold=True)]
        if _alike(row):
            lines += in_columns([fact, wrap(clean_lines(row[0].text), room, 0)], [label_size, 0])
        elif sizes:
            shown = [_shown(cell, size) for cell, size in zip(row, sizes, strict=True)]
            lines += in_columns([fact, *shown], [label_size, *sizes])
        else:
            parts = [
                line
                for title, cell in zip(titles, row, strict=True)
                if cell.text
                for line in _shown(Cell(f"{title}: {cell.text}", cell.deviates), room)
            ]
            lines += in_columns([fact, parts], [label_size, 0])
    return lines


def _alike(row: Sequence[Cell]) -> bool:
    """Returns whether a row is shown once: all cells have the same text, or only the first has a text."""
    return not any(cell.deviates for cell in row) and all(cell.text in ("", row[0].text) for cell in row)


def _text(cell: Cell) -> str:
    return ("* " if cell.deviates else "") + clean_lines(cell.text)


def _shown(cell: Cell, size: int | None) -> list[str]:
    """Returns a cell's lines, broken at blanks."""
    lines = [part for line in _text(cell).split("\n") for part in wrap(line, size, 2)]
    return [click.style(line, fg="yellow", bold=True) for line in lines] if cell.deviates else lines


def _sizes(rows: Sequence[Sequence[str]], room: int | None) -> list[int] | None:
    """Returns the width of each column: what it needs, or less if it can break at blanks. None if they do not fit."""
    columns = [[line for cell in column for line in cell.split("\n")] for column in zip(*rows, strict=True)]
    sizes = [max(map(cells, column)) for column in columns]
    least = [2 + max((cells(token) for line in column for token in line.split()), default=0) for column in columns]
    while room is not None and sum(sizes) + len(GAP) * (len(sizes) - 1) > room:
        wide = [i for i, size in enumerate(sizes) if size > least[i]]
        if not wide:
            return None
        sizes[max(wide, key=lambda i: sizes[i])] -= 1
    return sizes
