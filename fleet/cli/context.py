"""Makes the means of a verb from the settings: the selected inventory, a transport, a runtime, the handlers of
Ctrl-C."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from fleet.api import Fleet, Planned
from fleet.background import unattended
from fleet.cli.inventory import keep_failed, load_all_hosts, load_inventory
from fleet.cli.leader import handling
from fleet.cli.line.line import settings_of, the_line
from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean_lines, inform, write_plan, write_planned, write_report
from fleet.cli.screen.progress import ProgressLine, detailed
from fleet.codec import T
from fleet.errors import EXIT_INTERRUPTED, EXIT_PIPE, LimitError, UsageError
from fleet.events import Emit, Event, silent
from fleet.model import Host, Report
from fleet.runtime import Runtime
from fleet.transport.base import Cancel

STUCK_SECONDS = 10.0  # by then an interrupted command has ended on the hosts


@dataclass(frozen=True)
class CliFleet(Fleet):
    """The hosts of the command line that runs. The first Ctrl-C (or SIGTERM) sets `cancel`, the second one ends fleet
    at once. The second needs no other thread."""

    @contextmanager
    def runtime(
        self, emit: Emit | None = None, password_for: Callable[[Host], str | None] | None = None
    ) -> Iterator[Runtime]:
        with super().runtime(emit, password_for) as runtime, interrupts(runtime.cancel), unread(runtime):
            runtime.emit = detailed(runtime.emit, self.inventory, runtime.transport)
            yield runtime

    def run(self, work: Callable[[Runtime], T], emit: Emit | None = None) -> T:
        with self.runtime(emit) as runtime:
            return work(runtime)


def the_fleet(emit: Emit = silent) -> CliFleet:
    """Returns the hosts that -i, -w and -x name, with the way to reach them."""
    settings = settings_of()
    inventory = load_inventory()
    return CliFleet(
        inventory=inventory,
        everyone=load_all_hosts(),
        transport=settings.transport,
        fanout=settings.fanout,
        connect_timeout=settings.connect_timeout,
        emit=emit,
        ask=ask,
        typed=the_line().typed,
    )


def leave_if_stuck() -> None:
    """Ends an interrupted command if its output is not read for STUCK_SECONDS."""
    stuck_since = time.monotonic()
    while time.monotonic() - stuck_since < STUCK_SECONDS:
        time.sleep(0.5)
        if len(select.select([], [1, 2], [], 0)[1]) == 2:
            stuck_since = time.monotonic()
    os._exit(EXIT_INTERRUPTED)


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes Ctrl-C end a question at once, instead of setting `cancel`."""
    with handling({signal.SIGINT: signal.default_int_handler}):
        yield


def ask(question: str) -> bool | None:
    """Returns the user's answer on the terminal; None if no user can answer."""
    if settings_of().json or not (terminal.interactive(sys.stdin) and terminal.interactive(sys.stderr)):
        return None
    with interruptible(), terminal.prompt():
        *before, last = clean_lines(question).split("\n")
        for line in before:
            inform(line)
        return click.confirm(last, default=False, err=True)


@contextmanager
def interrupts(cancel: Cancel) -> Iterator[None]:
    """Handles SIGINT and SIGTERM: the first one cancels, so that all work ends in order; the second one exits at
    once."""
    says = getattr(the_line().command, "interrupted", None) or "stopping"

    def handler(signum: int, frame: Any) -> None:
        if cancel.count:
            terminal.leave(EXIT_INTERRUPTED)
        cancel.set()
        terminal.note(f"interrupted: {says}; once more to leave at once")
        with suppress(LimitError):
            unattended("stuck", leave_if_stuck)

    with handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM), handler)):
        yield


@contextmanager
def unread(runtime: Runtime) -> Iterator[None]:
    """Cancels the work if no process reads our output any more, and then raises BrokenPipeError."""
    given, gone = runtime.emit, list[BrokenPipeError]()

    def emit(event: Event) -> None:
        if gone:  # what commands print while they end is dropped, too
            return
        try:
            given(event)
        except BrokenPipeError as error:
            gone.append(error)
            runtime.cancel.set()

    runtime.emit = emit
    try:
        yield
    finally:
        if gone:
            raise gone[0]


def finish(report: Report, show: Callable[[Report], None] | None = None, *, requested: bool = False) -> int:
    """Records which hosts failed, and prints the report: see write_report."""
    if report.results and not settings_of().dry_run:
        keep_failed([result.host for result in report.results if not result.ok])
    return write_report(report, show, requested=requested)


def perform(
    plan: Callable[[CliFleet], Planned],
    show: Callable[[Report], None],
    *,
    requested: bool = False,
    line: ProgressLine | None = None,
    **more: object,
) -> int:
    """Does what most verbs do. --dry-run prints the plan. Otherwise the plan runs, with progress on `line`, and
    `finish` reports. The report has the typed verb, even if the plan is another verb's. more: fields to add to the
    plan's document."""
    with line or ProgressLine() as emit:
        planned = plan(the_fleet(emit))
        if settings_of().dry_run:
            return write_plan(planned, **more)
        report = replace(planned.run(), verb=the_line().verb)
    return finish(report, show, requested=requested)


@dataclass(frozen=True)
class Part:
    """One of several parts of a command line, planned and ready to run. line: makes the progress line. sources: paths
    of this machine that it needs. If a source is missing, and there are several parts, no part begins."""

    name: str
    plan: Planned
    line: Callable[[], ProgressLine]
    show: Callable[[Report], None]
    sources: tuple[Path, ...] = ()


def run_parts(verb: str, names: Sequence[str], parts: Sequence[Part]) -> int:
    """Runs the parts in order, up to the first that fails. Several parts are written as one JSON document; a single
    part is written as its own document. Returns the exit code."""
    settings = settings_of()
    if settings.dry_run:
        described = {part.name: part.plan.describe() for part in parts}
        document = described if len(parts) > 1 else described[parts[0].name]
        return write_planned(verb, names, document, lambda: (line for part in parts for line in part.plan.lines()))
    if len(parts) > 1 and (missing := [p for part in parts for p in part.sources if not os.path.lexists(p)]):
        raise UsageError(f"{missing[0]} does not exist", hint="give a path of this machine")
    reports, closed = dict[str, Report](), False
    for part in parts:
        with part.line() as line:
            reports[part.name] = report = part.plan.run(line)
        if not settings.json:
            try:
                finish(report, part.show)
            except BrokenPipeError:  # the other parts are done all the same
                closed = True
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not report.ok:
            break
    if settings.json:
        finish(report if len(parts) == 1 else _as_one(verb, names, reports))
    return report.exit_code or EXIT_PIPE * closed


def _as_one(verb: str, names: Sequence[str], reports: Mapping[str, Report]) -> Report:
    """Returns a report with each host's last result, and under "parts" the document of each part."""
    last = list(reports.values())[-1]
    hosts = {result.host: result for report in reports.values() for result in report.results}
    parts = {name: report.as_json() for name, report in reports.items()}
    return Report(verb, tuple(hosts[name] for name in names), last.exit_code, {"parts": parts})
