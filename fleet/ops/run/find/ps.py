"""`fleet ps`: the runs on the hosts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from fleet.answers.runs import RunsSeen
from fleet.model import Report, exit_code_of
from fleet.ops.plans import Line, OnHosts
from fleet.ops.run.find.find import find
from fleet.requests.runs import Ps
from fleet.runtime import Runtime


@dataclass(frozen=True)
class PsPlan(OnHosts):
    request: Ps

    def describe(self) -> dict[str, Any]:
        return {"all": self.request.all}

    def lines(self) -> Iterator[Line]:
        yield f"asks {len(self.hosts)} hosts for {'all' if self.request.all else 'live'} runs"


def run(plan: PsPlan, runtime: Runtime) -> Report:
    """data["runs"]: newest first."""
    runs, results = find(plan.inventory, runtime, live=not plan.request.all)
    runs = [run for run in runs if plan.request.all or run.live]
    bare = tuple(replace(result, answer=None, data={}) for result in results)
    return Report("ps", bare, exit_code_of(bare), answer=RunsSeen([each.seen for each in runs]))
