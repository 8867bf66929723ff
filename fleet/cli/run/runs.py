"""Runs `fleet logs`, `fleet attach`, `fleet stop` and the other verbs about runs: live runs, ended ones, and those that
lost their head."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleet.answers.runs import GivenUp, LogsHere, RunStopped, StacksTaken, StoppedThere
from fleet.cli.context import ask, finish, perform, the_fleet
from fleet.cli.inventory import job_here, load_all_hosts
from fleet.cli.line.command import ONLY_LOOKS, Verb, completed
from fleet.cli.line.line import settings_of, the_line
from fleet.cli.line.options import OF_HOSTS, common_options, request_options, runs_dir_option, without
from fleet.cli.line.values import EACH_LINE, Scrolling, no_fold_option, ranks, ranks_option, size, when
from fleet.cli.run import submit
from fleet.cli.run.follow import BY_ATTACH
from fleet.cli.run.follow import follow as follow_run
from fleet.cli.screen.board import Shown
from fleet.cli.screen.output import clean, echo, fold, inform, remark, write_json, write_plan, write_table
from fleet.codec import plain
from fleet.errors import InventoryError, UsageError
from fleet.model import Report
from fleet.node.gang.ends import ranks_text
from fleet.requests.runs import Attach, Logs, Stacks, Stop
from fleet.rules.units import counted, seconds, size_text

if TYPE_CHECKING:
    from fleet.ops.run.kept.local import LocalRun

RUNS_DIR = runs_dir_option()


@click.command("stop", cls=Verb, examples=("fleet stop latest", "fleet stop train-20261121-101500-ab12"))
@click.argument("run", shell_complete=completed("run_here"))
@request_options(Stop, "grace")
@RUNS_DIR
@common_options
def stop(run: str, grace: float | None, runs_dir: Path) -> int:
    """End a run on all its nodes, also one that others started. RUN is an id, a unique prefix, a name, or 'latest' of
    this folder's runs; of others a whole id.

    Hosts that do not answer now are tried again in the background; no node need know of it.
    """
    if (code := submit.stop(run, runs_dir)) is not None:
        return code
    return perform(lambda fleet: fleet.plan.stop(run, grace=grace, runs_dir=runs_dir), show_stopped)


def show_stopped(report: Report) -> None:
    stopped = report.read(RunStopped)
    over = "had ended, and is not started again" if stopped.restartable else "had ended"
    says = {"running": "stopped", "gone": over, "unknown": "had not begun"}
    for was, what in says.items():
        hosts = [r.host for r in report.results if r.ok and r.read(StoppedThere).was == was]
        if hosts:
            echo(f"run {stopped.run}: {fold(hosts)}: {what}")


@click.command("forget", cls=Verb, examples=("fleet forget latest", "fleet forget train-20261121-101500-ab12"))
@click.argument("run", shell_complete=completed("run_here"))
@RUNS_DIR
@common_options
def forget(run: str, runs_dir: Path) -> int:
    """Give up a run whose hosts are gone for good. None is contacted: what still runs there goes on. No process of this
    machine waits for one any more, and what is here of its logs stays, until 'fleet runs --prune'.
    """
    return perform(lambda fleet: fleet.plan.forget(run, runs_dir=runs_dir), show_forgotten)


def show_forgotten(report: Report) -> None:
    hosts, forgotten = [r.host for r in report.results if r.read(GivenUp).given_up], report.read(LogsHere)
    echo(f"run {forgotten.run}: {fold(hosts)} given up; its logs so far: {forgotten.logs}")


@click.command("attach", cls=Verb, examples=("fleet attach", "fleet attach train-20261121"))
@click.argument("run", default="latest", shell_complete=completed("run_here"))
@request_options(Attach, "detach")
@ranks_option
@RUNS_DIR
@common_options
def attach(run: str, ranks: Scrolling, **given: Any) -> int:
    """Follow a run that was detached, that lost its head, or that another head started. Its logs are fetched from where
    they end here; Ctrl-C leaves it to itself again. RUN is an id, a unique prefix, a name, or 'latest' of this
    folder's runs; of others a whole id.

    Exit: as launch.
    """
    code = submit.attach(run, given["runs_dir"], ranks, detach=given["detach"])
    if code is not None:
        return code
    planned = the_fleet().plan.attach(run, **given)
    return write_plan(planned) if settings_of().dry_run else follow_run(planned, ranks, BY_ATTACH)


@click.command(
    "logs",
    cls=Verb,
    interrupted=ONLY_LOOKS,
    examples=("fleet logs latest", "fleet logs -f latest --rank 0", "fleet logs latest --err"),
)
@click.argument("run", default="latest", shell_complete=completed("run_here"))
@request_options(
    Logs,
    *("follow", "host", "rank", "err", "since", "attempt", "tail"),
    rank={"type": ranks},
    since={"type": when},
)
@no_fold_option(text=EACH_LINE)
@RUNS_DIR
@common_options
def logs(run: str, rank: frozenset[int] | None, no_fold: bool, **given: Any) -> int:
    """Show what a run's ranks wrote, or go on showing what they write. RUN is an id, a unique prefix, a name, or
    'latest'. The run's own end is not changed by it.
    """
    settings = settings_of()
    if settings.json:
        raise UsageError("logs takes no --json", hint="the files are as the ranks wrote them: runs/RUN/HOST/rank*.out")
    if given["attempt"] is not None and (given["follow"] or given["since"] is not None):
        raise UsageError("--attempt goes with neither --follow nor --since", hint=f"fleet logs {run} --attempt 0")
    _or_here(run, given["runs_dir"], given["since"])
    planned = the_fleet().plan.logs(run, rank=rank, **given)
    if settings.dry_run:
        return write_plan(planned)
    hosts = [host.name for host in planned.hosts]
    bare, live = rank is not None and len(rank) == 1, given["follow"]
    with Shown(hosts, bare=bare, live=live, quiet=settings.quiet, fold=not no_fold) as shown:
        report = planned.run(shown)
    return finish(report)


def _or_here(run: str, runs_dir: Path, since: float | None) -> None:
    """Takes the hosts whose logs are on this machine as the inventory, if the run has a job in a queue, or if no
    inventory can be read and this machine has logs of the run."""
    if since is None and (found := job_here(run, runs_dir)) is not None:
        from fleet.ops.run.find.logs import hosts_here

        the_line().inventory = hosts_here(runs_dir / found[0])
        return
    try:
        load_all_hosts()
    except InventoryError:
        from fleet.ops.run.find.logs import hosts_here, local

        run_id, here = local(run, runs_dir, since)
        if not here or settings_of().inventory is not None:
            raise
        the_line().inventory = hosts_here(runs_dir / run_id)


@click.command(
    "stacks",
    cls=Verb,
    interrupted=ONLY_LOOKS,
    examples=("fleet stacks latest", "fleet stacks latest --rank 0,8 --all-threads"),
)
@click.argument("run", default="latest", shell_complete=completed("run_here"))
@request_options(Stacks, "rank", rank={"type": ranks})
@click.option("--all-threads", is_flag=True, help="Of every thread, where py-spy is there [main thread].")
@request_options(Stacks, "native", native={"show_default": True})
@RUNS_DIR
@common_options
def stacks(run: str, rank: frozenset[int] | None, all_threads: bool, native: bool, runs_dir: Path) -> int:
    """Show where the ranks of a live run are: the stack of each, those in the same place together, most of them
    first. RUN is an id, a unique prefix, a name, or 'latest'.

    The sources are py-spy, where the training interpreter's environment has it, else python's faulthandler, else the
    kernel. The run goes on as it would have. --native holds a rank for some tenths of a second.
    """
    return perform(
        lambda fleet: fleet.plan.stacks(run, rank=rank, native=native, runs_dir=runs_dir),
        lambda report: show_stacks(report, all_threads),
        requested=True,
    )


def show_stacks(report: Report, all_threads: bool) -> None:
    from fleet.ops.run.follow.stacks import by_host, ras_lines
    from fleet.rules.stacks import BRING_PY_SPY, NO_PY_SPY, lines, places, remarks

    taken = report.read(StacksTaken)
    if taken.summary:
        echo(clean(f"run {taken.run}: {taken.summary}"))
    if taken.hang:
        echo(clean(str(taken.hang["message"])))
    found = by_host(report.results)
    for line in lines(places(found), threads=all_threads):
        if not line.startswith(" "):
            echo("")
        echo(clean(line), wrap=False)
    for line in ras_lines(report.results):
        echo(clean(line), wrap=False)
    for each in remarks(found):
        inform(clean(each), BRING_PY_SPY if NO_PY_SPY in each else None)
    if taken.absent:
        echo(f"{ranks_text(taken.absent)}: no process: not begun yet, or over")


@click.command(
    "runs",
    cls=Verb,
    examples=("fleet runs", "fleet runs --prune --keep 20", "fleet runs --prune --days 30 --max-size 50GB"),
)
@click.option("--prune", is_flag=True, help="Take away the logs of old runs that are over.")
@click.option(
    "--keep", type=click.IntRange(min=0), default=10, show_default=True, metavar="N", help="Not the newest N."
)
@click.option("--days", type=click.FloatRange(min=0), default=0.0, metavar="D", help="Only those older than D days.")
@click.option("--max-size", type=size, metavar="SIZE", help="Only the oldest, until the rest takes 50GB or so.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@RUNS_DIR
@without(*OF_HOSTS)
def runs(prune: bool, keep: int, days: float, max_size: float | None, yes: bool, runs_dir: Path) -> int:
    """Show the runs that have logs on this machine: how each ended, when it began, and what its logs take.

    --prune takes those away that --keep, --days and --max-size all let go, never one that is not over. What the nodes
    keep of a run it does not touch; they prune by themselves.
    """
    from fleet.ops.run.kept import local
    from fleet.ops.run.kept.job import with_jobs

    settings, found = settings_of(), with_jobs(local.local_runs(runs_dir))
    old = local.prunable(found, keep, days, max_size) if prune else []
    if not settings.json:
        show_local(old if prune else found, runs_dir, old=prune)
        for run in found:
            if run.broken:
                inform(clean(f"warning: run {run.run}: {run.broken}"))
        for passed in local.passed_over(runs_dir):
            inform(clean(f"warning: {passed}"))
        if prune and (open_ := [run.run for run in found if run.state == "open"]):
            inform(f"{counted(len(open_), 'run')} without an end on record stay: 'fleet attach {open_[-1]}' fetches it")
    amount = f"{counted(len(old), 'run')}, {size_text(sum(run.size for run in old))}"
    if old and not settings.dry_run:
        if not yes and not (agreed := ask(f"Remove the logs of {amount}?")):
            hint = f"fleet runs --prune -y {_letting_go(keep, days, max_size, runs_dir)}; --dry-run only looks"
            raise UsageError(
                "nothing is removed" + " without consent, and no user is here to ask" * (agreed is None), hint=hint
            )
        for run in old:
            if left := local.prune(run):
                inform(clean(f"{run.logs} stays, for what fleet did not write there: {', '.join(left)}"))
        remark(f"removed: the logs of {amount}")
    if settings.json:
        document = Report("runs", (), 0, {"runs": [plain(run) for run in found], "pruned": [run.run for run in old]})
        write_json(document.as_json())
    return 0


def _letting_go(keep: int, days: float, max_size: float | None, runs_dir: Path) -> str:
    """Returns the options that chose the old runs, as the user would type them again."""
    argv = ["--keep", str(keep)]
    argv += ["--days", f"{days:g}"] if days else []
    argv += ["--max-size", f"{max_size:.0f}"] if max_size is not None else []
    argv += ["--runs-dir", str(runs_dir)] if runs_dir != Path("runs") else []
    return shlex.join(argv)


def show_local(found: list[LocalRun], runs_dir: Path, *, old: bool) -> None:
    if not found:
        echo(f"no {'old ' * old}run in {clean(str(runs_dir))}")
        return
    rows = [
        (
            run.run,
            run.state + f", still stopped on {fold(run.stopping)}" * bool(run.stopping),
            "" if run.exit_code is None else str(run.exit_code),
            seconds(max(0.0, time.time() - run.started)),
            clean(run.engine or ""),
            size_text(run.size),
        )
        for run in found
    ]
    write_table(("RUN", "STATE", "EXIT", "AGO", "ENGINE", "LOGS"), rows)
