"""How a launch ended, as people are told."""

from __future__ import annotations

from pathlib import Path

import click

from fleet.cli.hints import as_typed
from fleet.cli.launch_view import LaunchView
from fleet.cli.lines import who
from fleet.cli.options import settings_of
from fleet.cli.output import clean, fold, hint_line, talk, write_failures
from fleet.model import Report
from fleet.rules.launch import UNDYING
from fleet.rules.units import counted


def nearby(path: str) -> str:
    """As it is typed from here."""
    return path.removeprefix(f"{Path.cwd()}/")


def show_summary(report: Report, view: LaunchView) -> None:
    """How it ended, on stderr: the first failure first, then what other ranks died of, and where the logs are."""
    if report.data.get("detached"):
        run = report.data["run"]
        talk(f"run {run} goes on by itself; its logs come to {report.data['logs']}", f"fleet attach {run}")
        talk("  'fleet ps' shows it, 'fleet logs -f' its output, 'fleet stop' ends it")
        return
    failure = report.data["first_failure"]
    mine: list[int] = []
    if failure:
        talk(click.style("failed: ", fg="red", bold=True) + clean(failure["message"]))
        if failure["why"]:
            talk(clean(f"  why: {failure['why']}"))
        if failure["kernel"]:
            talk(clean(f"  kernel of {failure['kernel']['host']}: {failure['kernel']['line']}"))
        trace = failure["traceback"]
        if view.tracebacks.was_shown(trace):
            trace = "(its traceback stands above)"
        for line in (trace or failure["tail"] or "").splitlines():
            if line != failure["why"]:  # it is said once
                talk(f"    {clean(line)}")
        for group in report.data["tracebacks"] if trace else ():
            if failure["rank"] in group["ranks"]:
                mine = group["ranks"]
                if len(mine) > 1:
                    talk(f"  {who(mine, group['hosts'])} have the same traceback")
        if failure["hint"]:
            talk(hint_line(failure["hint"]))
        talk(clean(f"  log: {nearby(failure['log'])}"))
    others = [group for group in report.data["tracebacks"] if group["ranks"] != mine]
    after = [group for group in others if group["follows"]]
    for group in others:
        first = group["exception"].partition("\n")[0]
        if not group["follows"]:
            talk(clean(f"{who(group['ranks'], group['hosts'])}: {first}; log: {nearby(group['log'])}"))
    if after:
        ranks = sorted(rank for group in after for rank in group["ranks"])
        hosts = dict.fromkeys(host for group in after for host in group["hosts"])
        talk(clean(f"{who(ranks, hosts)}: what followed from it: {after[0]['exception'].partition(chr(10))[0]}"))
    lost = [r for r in report.results if r.error is not None]
    if lost and not (failure and len(lost) == 1 and failure["host"] == lost[0].host):
        write_failures(Report("launch", tuple(lost), report.exit_code))
    for result in report.results:
        if "undying" in result.data:
            talk(clean(f"error: host {result.host}: {result.data['undying']}"), UNDYING)
    if report.data["incomplete_logs"]:
        talk(f"error: logs are not complete here from: {fold(report.data['incomplete_logs'])}")
    if report.ok and settings_of().quiet:
        return
    if restarts := report.data.get("restarts"):
        earlier = f"logs of what came before: {report.data['logs']}/attempt*/"
        talk(f"{counted(len(restarts), 'restart')}, attempt {report.data['attempt']} was the last; {earlier}")
    state = "done" if report.ok else "interrupted" if report.exit_code == 130 else "failed"
    talk(
        f"run {report.data['run']} {state} after {report.data['seconds']:.1f} s, exit code {report.exit_code}; "
        f"logs of every rank: {report.data['logs']}/HOST/rank*.out|.err"
    )
    if report.data["next"]:
        talk("next:")
    for step in report.data["next"]:  # whole lines, to be copied
        talk(f"  {clean(as_typed(step))}", wrap=False)
