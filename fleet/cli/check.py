"""`fleet check`"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fleet.cli.command import Verb
from fleet.cli.context import finish, load_inventory, runtime
from fleet.cli.hints import as_typed
from fleet.cli.options import Seconds, common_options, settings_of
from fleet.cli.output import clean, write_plan

if TYPE_CHECKING:
    from fleet.model import Report
    from fleet.ops.check import Checked
    from fleet.rules.causes import Cause
    from fleet.rules.judge import Finding
    from fleet.rules.matrix import Matrix

COLORS = {"error": "red", "warning": "yellow", "info": "cyan"}
COLUMN_WIDTH = 26


@click.command("check", cls=Verb, examples=("fleet check", "fleet check -w @a100 -v"))
@click.option("--timeout", type=Seconds(0.1, 600), default=20.0, metavar="S",
              help="Seconds until a step on a node counts as hanging [20].")
@common_options
def check(timeout: float) -> int:
    """Compare the hosts' environments; each finding with its remedy.

    Exit: 123 when something would keep a run from starting or spoil it, 122 when a host cannot be reached.
    """
    from fleet.ops.check import CheckOptions, make_plan
    from fleet.ops.check import check as check_hosts

    settings = settings_of()
    inventory = load_inventory()
    options = CheckOptions(timeout)
    if settings.dry_run:
        plan = make_plan(inventory, options)
        write_plan("check", inventory.names,
                   {name: {**spec, "env": sorted(spec["env"])} for name, spec in plan.items()})
        return 0
    with runtime(inventory) as rt:
        checked = check_hosts(inventory, options, rt)

    def show(report: Report) -> None:
        from rich.console import Console

        # a pipe gets room for a line, a terminal what it has
        width = None if Console().is_terminal else 160
        click.echo(screen(checked, width=width, quiet=settings.quiet, verbose=settings.verbose > 0), nl=False)

    return finish(checked.report, show)


def screen(checked: Checked, *, width: int | None = None, quiet: bool = False, verbose: bool = False) -> str:
    """What `fleet check` prints: the matrix, hosts that could not be asked, the findings, a last line that sums up."""
    from fleet.inventory.nodeset import fold
    from fleet.rules.causes import by_cause
    from fleet.rules.matrix import matrix

    columns = width or shutil.get_terminal_size().columns
    lines: list[str] = []
    if checked.views and not quiet:
        lines.append(draw(matrix(checked.views, fold, max(2, (columns - 20) // COLUMN_WIDTH)), columns) + "\n")
    silent = [result.host for result in checked.report.results if not result.ok]
    if silent:
        lines.append(click.style(f"not compared: {fold(silent)}", fg="red") + " (no facts: see below)\n")
    found = by_cause([(f, f.message, f.remedy) for f in checked.findings], fold)
    shown = [cause for cause in found if cause.whose[0].severity in (
        ("error",) if quiet else COLORS if verbose else ("error", "warning"))]
    lines += [describe(cause) for cause in shown]
    if not quiet:
        lines.append(summary(checked, [cause.whose[0].severity for cause in found], len(found) - len(shown)))
    return "".join(lines)


def draw(table: Matrix, width: int) -> str:
    """The matrix, drawn; deviating cells are marked with an asterisk and, on a terminal, coloured."""
    import io

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    grid.add_column("fact", style="bold", no_wrap=True)
    for title in table.titles:
        grid.add_column(Text(clean(title)), overflow="fold")
    for label, cells in table.rows:
        grid.add_row(label, *(
            Text(("* " if cell.deviates else "") + clean(cell.text), "bold yellow" if cell.deviates else "")
            for cell in cells
        ))
    out = io.StringIO()
    # click strips the colours again where stdout is no terminal
    Console(file=out, width=width, force_terminal=True, color_system="standard", legacy_windows=False).print(grid)
    return out.getvalue()


def describe(cause: Cause[Finding]) -> str:
    """What one rule found, in two lines."""
    finding = cause.whose[0]
    severity = click.style(f"{finding.severity:7}", fg=COLORS[finding.severity], bold=True)
    message = clean(" ".join(cause.message.split()))
    return f"{severity} {message}  [{finding.id}]\n        {clean(as_typed(cause.hint or ''))}\n"


def summary(checked: Checked, severities: Sequence[str], hidden: int) -> str:
    """"4 hosts compared: 1 error, 2 warnings"."""
    if not checked.views:
        return "no host told its facts: nothing was compared\n"
    counts = [(s, severities.count(s)) for s in COLORS]
    said = ", ".join(f"{n} {s}{'s' if n != 1 and s != 'info' else ''}" for s, n in counts if n) or "nothing to report"
    more = "; -v shows all" if hidden else ""
    n = len(checked.views)
    return f"{n} host{'' if n == 1 else 's'} compared: {said}{more}\n"
