"""Runs `fleet kill-port PORT...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fleet.answers.hosts import Listening
from fleet.cli.context import ask, finish, the_fleet
from fleet.cli.line.command import Verb
from fleet.cli.line.line import settings_of
from fleet.cli.line.options import common_options, request_options
from fleet.cli.line.values import parse_ports
from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean, echo, fold, write_table
from fleet.cli.screen.progress import ProgressLine
from fleet.errors import Reason, UsageError
from fleet.model import Report
from fleet.requests.hosts import KillPort

if TYPE_CHECKING:
    from fleet.ops.kill_port import Listener

COMMAND_WIDTH = 60


@click.command("kill-port", cls=Verb, examples=("fleet kill-port 29500", "fleet kill-port -y 29500-29510"))
@click.argument("ports", nargs=-1, required=True, callback=parse_ports, metavar="PORT...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@request_options(KillPort, "force", "grace", "runs")
@common_options
def kill_port(ports: list[int], yes: bool, force: bool, grace: float, runs: tuple[str, ...]) -> int:
    """Show who listens on a port, TCP or UDP, on every host, and end them: only them, and only when you agree.

    PORT is a port or a range, 29500-29510. Other ports of a process, which it would give up too, are under ALSO.
    What carries this connection is never ended, nor is a live run's that is not named. Exit: 1 when a port is still
    taken.
    """
    from fleet.ops.kill_port import KillPlan, preview, report

    settings = settings_of()
    with ProgressLine() as line:
        planned = the_fleet(line).plan.kill_port(ports, force=force, grace=grace, runs=runs)
    plan = planned.plan
    assert isinstance(plan, KillPlan)
    if not settings.json and not (settings.quiet and (yes or not plan.targets) and not settings.dry_run):
        show(plan.listeners)
        if not plan.listeners and any(result.ok for result in plan.results):
            echo(f"nothing listens on {f'port {ports[0]}' if len(ports) == 1 else 'these ports'}")
    if settings.dry_run:
        outcome = preview(plan)
    elif plan.targets and (yes or agree(len({(each.host, each.pid) for each in plan.targets}), ports, force)):
        with ProgressLine() as line:  # opened after the question, in which Ctrl-C means no
            outcome = planned.run(line)
    else:
        outcome = report(plan, {})
    return finish(outcome, show_ended, requested=settings.dry_run)


def agree(count: int, ports: Sequence[int], force: bool) -> bool:
    """Returns whether the user agrees to end `count` processes. Raises UsageError without a terminal."""
    what = f"{count} process{'' if count == 1 else 'es'}"
    agreed = ask(f"End {what}?")
    if agreed is None:
        line = f"fleet kill-port -y {'--force ' * force}{fold(map(str, ports)).strip('[]').replace(',', ' ')}"
        raise UsageError(f"would end {what}, but no user can agree", hint=f"to end them: {line}; --dry-run only looks")
    return agreed


def show(listeners: tuple[Listener, ...]) -> None:
    """Prints a line for each process that listens, and what would be done about it."""
    from fleet.rules.units import seconds

    if not listeners:
        return
    rows, verbose = [], settings_of().verbose > 0
    for each in listeners:
        facts = each.facts
        address = clean(f"[{facts['address']}]" if ":" in facts["address"] else facts["address"])
        command = clean(facts["command"] or "?")
        if not verbose:
            command = terminal.cut(command, COMMAND_WIDTH, "...")
        udp = "/udp" * (facts["protocol"] == "udp")
        rows.append(
            (
                "leave" if each.reason else "end",
                each.host,
                f"{address}:{facts['port']}{udp}",
                str(facts["pid"] or "?"),
                clean(facts["user"]),
                "?" if facts["age"] is None else seconds(facts["age"]),
                clean(facts["run_id"] or ""),
                clean(", ".join(facts["also"])),
                command,
            )
        )
    titles = ("", "HOST", "ADDRESS", "PID", "USER", "RUNS FOR", "RUN", "ALSO", "COMMAND")
    once = "all of them" if terminal.interactive(sys.stdout) else ""
    write_table(titles, rows, keys=4, once=once, shorten=not verbose)


def show_ended(outcome: Report) -> None:
    """Prints the processes that were ended; with --dry-run, why some would not be ended. Processes that are left are
    errors of their hosts, which finish() prints."""
    from fleet.rules.causes import by_cause

    outcomes: list[tuple[str, str, None]] = []
    for result in outcome.results:
        for entry in result.read(Listening).listeners:
            if entry.ended:
                outcomes.append((result.host, Reason(f"port {entry.port}, pid {{pid}}: ended", pid=entry.pid), None))
            elif outcome.data.get("dry_run") and entry.reason:
                outcomes.append((result.host, f"port {entry.port}: {entry.reason}", None))
    for cause in by_cause(outcomes):
        echo(f"{fold(cause.whose)}: {clean(cause.message)}")
