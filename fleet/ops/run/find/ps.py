"""`fleet ps`: the runs on the hosts."""

from __future__ import annotations

from dataclasses import replace

from fleet.answers.runs import RunsSeen
from fleet.model import Report, exit_code_of
from fleet.ops.plans import Asked
from fleet.ops.run.find.find import find
from fleet.requests.runs import Ps
from fleet.runtime import Runtime


def run(plan: Asked[Ps], runtime: Runtime) -> Report:
    """data["runs"]: newest first."""
    runs, results = find(plan.inventory, runtime, live=not plan.request.all)
    runs = [run for run in runs if plan.request.all or run.live]
    bare = tuple(replace(result, answer=None, data={}) for result in results)
    return Report("ps", bare, exit_code_of(bare), answer=RunsSeen([each.seen for each in runs]))
