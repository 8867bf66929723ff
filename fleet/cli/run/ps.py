"""Runs `fleet ps`: lists the runs on the hosts, once, or repeatedly with --watch."""

from __future__ import annotations

import math
import sys
import threading
import time

import click

from fleet.answers.runs import RunSeen, RunsSeen
from fleet.cli.context import finish, perform, the_fleet
from fleet.cli.inventory import enter_all
from fleet.cli.line.command import ONLY_LOOKS, Verb
from fleet.cli.line.line import settings_of, the_line
from fleet.cli.line.options import common_options, request_options
from fleet.cli.screen import terminal
from fleet.cli.screen.layout import table
from fleet.cli.screen.output import clean, echo, fold, write_table
from fleet.errors import EXIT_INTERRUPTED, Interrupted, UsageError
from fleet.model import Report
from fleet.requests.runs import Ps
from fleet.rules.units import seconds

TITLES = ("RUN", "STATE", "AGE", "OWNER", "HOSTS", "RANKS UP", "PORT", "SILENT FOR", "LAST LINE")


@click.command("ps", cls=Verb, interrupted=ONLY_LOOKS, examples=("fleet ps", "fleet ps --all", "fleet ps --watch"))
@request_options(Ps, "all")
@click.option(
    "--watch",
    is_flag=False,
    flag_value="5",
    type=click.FloatRange(min=0.5, max=86400),
    metavar="[S]",
    help="Redraw the table every S seconds, by default 5, until q or Ctrl-C.",
)
@common_options
def ps(watch: float | None, **given: bool) -> int:
    """Show the runs on the hosts: who started them, their state, and the last line that a rank wrote.

    The hosts are queried, so that runs of other heads are there, too.
    """
    enter_all()
    if watch is not None:
        return watched(watch, **given)
    return perform(lambda fleet: fleet.plan.ps(**given), lambda it: show_runs(it, given["all"]), requested=True)


def watched(every: float, **given: bool) -> int:
    """Draws the table until q or Ctrl-C."""
    if math.isnan(every):  # click's ranges let it pass
        raise UsageError("--watch nan: no number of seconds")
    settings = settings_of()
    if settings.json or settings.dry_run or not (terminal.interactive(sys.stdout) and terminal.live(sys.stderr)):
        raise UsageError("--watch draws on a terminal", hint=f"while fleet ps; do sleep {every:g}; done")
    fleet, enough = the_fleet(), threading.Event()
    with terminal.pressed({b"q": enough.set}):
        try:
            while True:
                report = fleet.plan.ps(**given).run()
                if any(isinstance(result.error, Interrupted) for result in report.results):
                    return EXIT_INTERRUPTED
                no_answer = [result.host for result in report.results if not result.ok]
                rows, width = rows_of(report), terminal.width(sys.stdout)
                lines = table(TITLES, rows, width, shorten=not settings.verbose) if rows else [_none(given["all"])]
                lines += [f"no answer from {fold(no_answer)}; 'fleet ps' says why"] if no_answer else []
                terminal.draw([*lines, f"{time.strftime('%H:%M:%S')}, every {every:g} s; q ends it"])
                if enough.wait(every):
                    break
        finally:
            terminal.draw([])
    return finish(report, lambda it: show_runs(it, given["all"]), requested=True)


def show_runs(report: Report, every: bool) -> None:
    runs = report.read(RunsSeen).runs
    everywhere = report.ok and settings_of().hosts is None and settings_of().exclude is None
    if everywhere and all(run.state in ("done", "failed", "stopped", "unknown") for run in runs):
        the_line().none_live = True
    if rows := rows_of(report):
        write_table(TITLES, rows, shorten=not settings_of().verbose)
    else:
        echo(_none(every))


def _none(every: bool) -> str:
    return "no run" if every else "no live run; --all shows those that have ended"


def rows_of(report: Report) -> list[tuple[str, ...]]:
    """Returns a row of the table for each run."""
    rows = list[tuple[str, ...]]()
    for run in report.read(RunsSeen).runs:
        nodes = run.nodes.values()
        total = run.about.get("world_size") or sum(len(node.ranks) for node in nodes)
        rows.append(
            (
                run.run,
                run.state + _left(run),
                "?" if run.age is None else seconds(run.age),
                clean(run.about.get("owner") or "?"),
                fold(run.nodes),
                f"{run.ranks_up}/{total}",
                clean((run.about.get("master") or "?").rpartition(":")[2]),
                "-" if run.silent is None else seconds(run.silent),
                clean(run.last),
            )
        )
    return rows


def _left(run: RunSeen) -> str:
    if run.unattended is not None:
        return f", unattended for {seconds(run.unattended)}"
    return ", detached" if run.lease is None and run.state == "running" else ""
