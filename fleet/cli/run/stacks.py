"""`fleet stacks RUN`: where a run's ranks are."""

from __future__ import annotations

from pathlib import Path

import click

from fleet.answers.runs import StacksTaken
from fleet.cli.context import perform
from fleet.cli.line.command import ONLY_LOOKS, Verb, completed
from fleet.cli.line.options import asked, common_options, runs_dir_option
from fleet.cli.line.values import ranks
from fleet.cli.screen.output import clean, echo, talk
from fleet.model import Report
from fleet.node.gang.ends import ranks_text
from fleet.ops.run.follow.stacks import by_host
from fleet.requests.runs import Stacks
from fleet.rules.stacks import BRING_PY_SPY, NO_PY_SPY, lines, places, remarks


@click.command(
    "stacks",
    cls=Verb,
    interrupted=ONLY_LOOKS,
    examples=("fleet stacks latest", "fleet stacks latest --rank 0,8 --all-threads"),
)
@click.argument("run", default="latest", shell_complete=completed("run_here"))
@asked(Stacks, "rank", rank={"type": ranks})
@click.option("--all-threads", is_flag=True, help="Of every thread, where py-spy is there [main thread].")
@asked(Stacks, "native", native={"show_default": True})
@runs_dir_option("Where logs are, on this machine.")
@common_options
def stacks(run: str, rank: frozenset[int] | None, all_threads: bool, native: bool, runs_dir: Path) -> int:
    """Show where the ranks of a live run are: the stack of each, those in the same place together, most of them
    first. RUN is an id, a unique prefix, a name, or 'latest'.

    The sources are py-spy, where the training interpreter's environment has it, else python's faulthandler, else the
    kernel. The run goes on as it would have. --native holds a rank for some tenths of a second.
    """
    return perform(
        lambda fleet: fleet.plan.stacks(run, rank=rank, native=native, runs_dir=runs_dir),
        lambda report: show(report, all_threads),
        asked_for=True,
    )


def show(report: Report, all_threads: bool) -> None:
    taken = report.read(StacksTaken)
    if taken.summary:
        echo(clean(f"run {taken.run}: {taken.summary}"))
    found = by_host(report.results)
    for line in lines(places(found), threads=all_threads):
        if not line.startswith(" "):
            echo("")
        echo(clean(line), wrap=False)
    for remark in remarks(found):
        talk(clean(remark), BRING_PY_SPY if NO_PY_SPY in remark else None)
    if taken.absent:
        echo(f"{ranks_text(taken.absent)}: no process: not begun yet, or over")
