"""Runs `fleet ps`, which lists the runs on the hosts, and `fleet stacks RUN`, which shows where a run's ranks are."""

from __future__ import annotations

from fleet.answers.runs import RunsSeen, StacksTaken
from fleet.errors import UsageError
from fleet.model import Report, exit_code_of
from fleet.ops.plans import RequestPlan
from fleet.ops.run.find.find import check_protocol, find, warn_of_missing
from fleet.ops.run.find.here import chosen
from fleet.ops.run.follow.stacks import ask_stacks, by_host, hang_of
from fleet.ops.run.kept.local import no_such_rank
from fleet.requests.runs import Ps, Stacks
from fleet.rules.stacks import in_short, places
from fleet.runtime import Runtime


def ps(plan: RequestPlan[Ps], runtime: Runtime) -> Report:
    """Returns the report, whose data["runs"] has the newest run first."""
    runs, results = find(plan.inventory, runtime, live=not plan.request.all)
    runs = [run for run in runs if plan.request.all or run.live]
    return Report("ps", results, exit_code_of(results), answer=RunsSeen([each.seen for each in runs]))


def stacks(plan: RequestPlan[Stacks], runtime: Runtime) -> Report:
    """Returns the report. Its data: "run", "places" (rules.stacks.Place), "summary", "absent": ranks that have ended,
    or not begun. A host's data["ranks"] has the stacks of its ranks."""
    runs, answers = find(plan.inventory, runtime, live=False)
    found = chosen(plan.request.run, runs, answers, plan.request.runs)
    if not found.live:
        raise UsageError(f"run {found.run_id} is over: {found.state}", hint=f"fleet logs {found.run_id}")
    check_protocol(found)
    warn_of_missing(found, answers, runtime.emit)
    parts = {
        name: host
        for name, host in found.hosts.items()
        if plan.request.ranks is None or plan.request.ranks.intersection(found.parts[name]["ranks"])
    }
    # if the plan has none of these ranks, all hosts are asked: a script may have numbered its ranks itself
    results = ask_stacks(found.run_id, parts or found.hosts, plan.request.ranks, plan.request.native, runtime)
    taken = by_host(results)
    where = places(taken)
    known = {stack["rank"] for each in taken.values() for stack in each}
    if not parts and not known:
        there = {rank for part in found.parts.values() for rank in part["ranks"]}
        raise no_such_rank(found.run_id, plan.request.ranks or (), there)
    wanted = {rank for result in results if result.ok for rank in found.parts[result.host]["ranks"]}
    absent = sorted((wanted if plan.request.ranks is None else wanted & plan.request.ranks) - known)
    stuck, shown = hang_of(results, where), [place.as_json() for place in where]
    answer = StacksTaken(found.run_id, in_short(where), shown, absent, stuck.as_json() if stuck else None)
    return Report("stacks", results, exit_code_of(results), answer=answer)
