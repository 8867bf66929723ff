"""Runs `fleet report`: shows a run on one page, from its folder on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from fleet.answers.runs import ReportedRun
from fleet.cli.context import finish
from fleet.cli.line.command import Verb, completed
from fleet.cli.line.options import OF_HOSTS, runs_dir_option, without
from fleet.cli.screen.output import advise, clean, echo, fold, remark, write_pairs, write_table
from fleet.cli.screen.pages import COLUMNS, clock, kind, report_page
from fleet.model import Report, grouped
from fleet.node.gang.ends import ranks_text
from fleet.own import write_given
from fleet.rules.units import counted, seconds

ENDS = {"failed": "failed", "killed": "ended by a signal", "open": "no end known"}

html_option = click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write a page with all of it, too.",
)


@click.command("report", cls=Verb, examples=("fleet report latest", "fleet report latest --html run.html"))
@click.argument("run", default="latest", shell_complete=completed("run_here"))
@html_option
@runs_dir_option()
@without(*OF_HOSTS)
def report(run: str, html: Path | None, runs_dir: Path) -> int:
    """Show a run on one page: what ran, its attempts and ranks, use, power and network of each host, the first failure.
    RUN is an id, a unique prefix, a name, or 'latest'. All of it comes from the run's folder; no host is contacted.
    """
    from fleet.ops.run.find.report import report_on

    found = report_on(run, runs_dir)
    if html is not None:
        write_given(html.parent, {html.name: report_page(found).encode()}, "--html FILE")
        remark(f"written: {clean(str(html))}")
    return finish(found, lambda _: show(found))


def show(report: Report) -> None:
    """Prints the report as text."""
    run = report.read(ReportedRun)
    code = "" if run.exit_code is None else f", exit code {run.exit_code}"
    echo(clean(f"run {run.run}: {run.state}{code}, {seconds(run.seconds)} from {clock(run.started)}"))
    launcher = f"{run.engine or 'not known'}, {counted(run.world_size, 'rank')} on {fold(run.ranks)}"
    about = {"command": shlex.join(run.command), "code": run.code or "", "launcher": launcher, "logs": run.logs}
    write_pairs((name, text) for name, text in about.items() if text)
    for attempt in run.attempts:
        ends = grouped((kind(seen), seen.rank) for seen in attempt.ranks)
        texts = [f"{name}: {ranks_text(ends[each])}" for each, name in ENDS.items() if each in ends]
        how = "; ".join(texts) or ("all ranks ended with 0" if ends else "no rank is known")
        echo(f"attempt {attempt.attempt}: {seconds(attempt.ended - attempt.began)}, {how}")
    if run.metrics:
        rows = [
            [clean(host), *(form(mean[name]) if name in mean else "" for name, _, _, form in COLUMNS)]
            for host, mean in run.metrics.items()
        ]
        write_table(("HOST", *(short for _, short, _, _ in COLUMNS)), rows)
    for notice in run.notices:
        echo(clean(f"{clock(notice['time'], '%H:%M:%S')} {notice['level']}: {notice['message']}"))
    if failure := run.first_failure:
        echo(click.style("failed: ", fg="red", bold=True) + clean(failure.message))
        for line in (failure.traceback or failure.tail or "").splitlines():
            echo(f"    {clean(line)}", wrap=False)
        advise(failure.hint)
