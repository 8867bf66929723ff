"""Follows a run on a terminal, and prints its summary for people."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleet.answers.run_start_events import Version
from fleet.answers.runs import HostUse, LeftAlone, NodeEnd, RunSummary
from fleet.api import Fleet, Planned
from fleet.background import background
from fleet.cli import leader
from fleet.cli.inventory import keep_failed
from fleet.cli.line.hints import as_typed
from fleet.cli.line.line import settings_of, the_line
from fleet.cli.line.values import Scrolling
from fleet.cli.run.launch_view import LaunchView
from fleet.cli.screen import terminal
from fleet.cli.screen.lines import who
from fleet.cli.screen.output import advise, clean, fold, inform, write_failures, write_json
from fleet.cli.screen.progress import detailed
from fleet.errors import EXIT_INTERRUPTED
from fleet.events import Notice
from fleet.inventory.find import display
from fleet.model import Report, grouped
from fleet.node.gang.ends import ranks_text
from fleet.protocol.codes import FOR_RANKS
from fleet.rules.left_behind import UNDYING
from fleet.rules.units import counted, few
from fleet.transport.base import pass_on

if TYPE_CHECKING:
    from fleet.runtime import Runtime


BY_ATTACH = frozenset((signal.SIGINT, signal.SIGTERM))  # with `fleet attach`, these detach
TERM_SECONDS = 25.0  # Slurm and Kubernetes kill 30 s after their SIGTERM


def show_summary(report: Report, view: LaunchView) -> None:
    """Prints how the run ended, on stderr: the first failure, the errors of other ranks, and where the logs are."""
    if isinstance(left := report.answer, LeftAlone):
        run = left.run
        if not left.led:
            inform(f"run {run} goes on as before", f"'fleet attach {run}' follows it again")
            return
        if left.runs > 1:
            inform(f"{counted(left.runs, 'run')} go on by themselves", "fleet runs")
            inform("  " + as_typed("'fleet logs -f RUN' shows the output of one, 'fleet stop RUN' ends one"))
            return
        inform(f"run {run} goes on by itself; its logs are collected in {left.logs}", f"fleet attach {run}")
        verb = "ps" if left.world_size else "runs"  # world_size is 0 for a job that waits
        inform("  " + as_typed(f"'fleet {verb}' shows it, 'fleet logs -f' its output, 'fleet stop {run}' ends it"))
        return
    summary = report.read(RunSummary)
    if error := summary.error:
        inform(clean(f"error: {error['message']}"), error["hint"])
    failure = summary.first_failure
    mine: Sequence[int] = ()
    if failure:
        inform(click.style("failed: ", fg="red", bold=True) + clean(failure.message))
        if failure.why:
            inform(clean(f"  why: {failure.why}"))
        if failure.kernel:
            inform(clean(f"  kernel of {failure.kernel.host}: {failure.kernel.line}"))
        trace = failure.traceback
        if view.tracebacks.was_shown(trace):
            trace = "(its traceback is above)"
        for line in (trace or failure.tail or "").splitlines():
            if line != failure.why:  # that line was printed already
                inform(f"    {clean(line)}")
        for group in summary.tracebacks if trace else ():
            if failure.rank in group.ranks:
                mine = group.ranks
                if len(mine) > 1:
                    inform(f"  {who(mine, group.hosts)} have the same traceback")
        advise(failure.hint)
        inform(clean(f"  log: {display(Path(failure.log))}"))
    elif summary.end and summary.end["by"] == "failure" and not summary.error:
        inform(click.style("failed: ", fg="red", bold=True) + clean(summary.end["message"]))
    others = [group for group in summary.tracebacks if group.ranks != mine]
    after = [group for group in others if group.follows]
    for group in others:
        first = group.exception.partition("\n")[0]
        if not group.follows:
            inform(clean(f"{who(group.ranks, group.hosts)}: {first}; log: {display(Path(group.log))}"))
    if after:
        ranks = sorted(rank for group in after for rank in group.ranks)
        hosts = dict.fromkeys(host for group in after for host in group.hosts)
        inform(clean(f"{who(ranks, hosts)}: what followed from it: {after[0].exception.partition(chr(10))[0]}"))
    lost = [r for r in report.results if r.error is not None]
    if lost and not (failure and len(lost) == 1 and failure.host == lost[0].host):
        write_failures(Report("launch", tuple(lost), report.exit_code))
    for result in report.results:
        if undying := result.read(NodeEnd).undying:
            inform(clean(f"error: host {result.host}: {undying}"), UNDYING)
    if summary.incomplete_logs:
        inform(f"error: logs are not complete here from: {fold(summary.incomplete_logs)}")
    if report.ok and settings_of().quiet:
        return
    if restarts := summary.restarts:
        earlier = f"logs of what came before: {summary.logs}/attempt*/"
        inform(f"{counted(len(restarts), 'restart')}, attempt {summary.attempt} was the last; {earlier}")
    end = summary.end
    # without a first failure: a rank may exit with EXIT_INTERRUPTED, too
    interrupted = not failure and (report.exit_code == EXIT_INTERRUPTED or (end is not None and end["by"] == "queue"))
    by_whom = end["message"] if end and end["by"] in ("stop", "queue") else "interrupted"
    state = "done" if report.ok else clean(by_whom) if interrupted else "failed"
    if (unknown := summary.unknown) and not failure:
        state = f"{state if interrupted else 'over where that is known'} ({fold(unknown)} unknown)"
    inform(
        f"run {summary.run} {state} after {summary.seconds:.1f} s, exit code {report.exit_code}; "
        f"logs of every rank: {summary.logs}/HOST/rank*.out|.err"
    )
    if used := grouped((_use(it), host) for host, it in (summary.used or {}).items() if it.has_gpus):
        inform(clean("on average: " + few((f"{fold(hosts)}: {text}" for text, hosts in used.items()), 8)))
    if slow := summary.slow:
        inform(clean(f"slow: {slow.where} held up the others: {slow.evidence}"))
    if killed := summary.killed:
        inform(f"killed, because they or their background processes had not ended in time: {ranks_text(killed)}")
    if summary.next:
        inform("next:")
    for step in summary.next:  # whole lines, to be copied
        inform(f"  {clean(as_typed(step))}", wrap=False)


def _use(it: HostUse) -> str:
    shown = {"GPUs {:.0f}% busy": it.use, "{:.0f} W": it.power, "CPUs {:.0f}% busy": it.cpu}
    return ", ".join(text.format(value) for text, value in shown.items() if value is not None)


def follow(plan: Planned, scrolls: Scrolling, leaves: Collection[signal.Signals] = ()) -> int:
    """Runs the plan, shows the run, and returns the exit code; the key d detaches. scrolls: the ranks whose lines
    scroll. leaves: signals that detach, instead of stopping the run."""
    if the_line().by_itself:
        leader.begin()
    settings = settings_of()
    level = -1 if settings.quiet else settings.verbose
    view = LaunchView([host.name for host in plan.hosts], json=settings.json, level=level, scrolls=scrolls)

    if settings.json:
        write_json(Version().as_json(time.time()))

    def say(text: str) -> None:  # the view's own thread prints it: a stopped terminal delays no other thread
        view(Notice("info", text))

    with Fleet.runtime(plan.fleet, view) as runtime, ExitStack() as screen:
        runtime.emit = detailed(view, plan.fleet.inventory, runtime.transport, say)

        def end(report: Report) -> None:
            """Ends the display, and prints the summary."""
            screen.close()
            if isinstance(report.answer, RunSummary):
                first = report.answer.first_failure
                keep_failed([first.host] if first else [result.host for result in report.results if not result.ok])
            if settings.json:
                write_json({"event": "summary", **report.as_json()})
            else:
                show_summary(report, view)

        def stay(report: Report) -> None:
            end(report)
            leader.stay(report.exit_code, f"{report.read(LeftAlone).logs}/leader.log")

        runtime.stay = stay if leader.leads() else None
        screen.enter_context(_signals(runtime, leaves, view))
        screen.enter_context(terminal.pressed({b"d": runtime.detach.set}))
        screen.enter_context(view)
        report = plan.work(runtime)
        stayed = runtime.stay is not None and not leader.leads()
        if not stayed:
            end(report)
    if stayed:
        from fleet.ops.run.follow.background import wait

        wait()
        # no process reads the rest of a command's output
        raise click.exceptions.Exit(report.exit_code)
    return report.exit_code


@contextmanager
def _signals(runtime: Runtime, leaves: Collection[signal.Signals], view: LaunchView) -> Iterator[None]:
    """Handles the signals of a run. Ctrl-C and SIGTERM stop it: the first one gently, the second one at once. A closed
    terminal leaves the run to its lease, or, without a lease, to the leader. leaves: signals that detach. view: knows
    whether the run has begun, and whether this command leads it."""

    def stop(signum: int, frame: Any) -> None:
        if signum in leaves:
            runtime.detach.set()
            ends = "leaving the run to itself; 'fleet stop latest' ends it"
            terminal.note(ends if view.leads else "no longer watching; the run goes on as before")
            return
        latch = runtime.cancel
        latch.within = TERM_SECONDS if signum == signal.SIGTERM else latch.within
        latch.set()
        says = {1: "stopping all ranks; once more kills them", 2: "killing all ranks; once more leaves them alone"}
        what = says.get(latch.count, "leaving") if view.begun else "no rank runs yet, and none is started"
        terminal.note(f"interrupted: {what}")

    def hang_up(signum: int, frame: Any) -> None:
        # no process reads the output any more; the nodes go on for --lease seconds, and another process may attach
        if runtime.stay is None or view.leased:
            os._exit(128 + signum)
        leader.leave_terminal()
        runtime.detach.set()

    def signalled(signum: int, frame: Any) -> None:
        background("fleet-signal", partial(pass_on, runtime.transport, signum))

    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, **dict.fromkeys(FOR_RANKS, signalled)}
    if leader.leads() or signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores SIGHUP
        handlers[signal.SIGHUP] = hang_up
    with leader.handling(handlers):
        yield
