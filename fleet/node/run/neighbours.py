"""Finds the live runs on this node that use the same GPUs as a run that will start here.

spec: {"run", "devices": its GPUs, or null: all}. Sends J {"event": "neighbours", "runs": [...]}: see LiveRun in
fleet/protocol/messages/run.py.
"""

import os
import time

from fleet.node.base.errors import Refused, answer
from fleet.node.base.processes import environment
from fleet.node.base.run_folder import live_supervisors, runs_root
from fleet.node.base.types import Any, Mapping, run, run_specs
from fleet.node.run.list_runs import runs
from fleet.node.run.marks import marked
from fleet.protocol.state import SCOPE, meet

YIELD_SECONDS = 8.0  # so long a younger run may take to end on this node after another node has refused it


class Occupied(Refused):
    """Is raised if other runs use this node. runs: these runs."""

    def __init__(self, runs: "list[run.LiveRun]") -> None:
        Refused.__init__(self, "another run is live here")
        self.runs = runs


def elsewhere(name: str) -> bool:
    """Returns whether a run belongs to another job of a scheduler. Such a run is no neighbour, as the scheduler assigns
    the GPUs."""
    mine = os.environ.get(SCOPE, "").encode()
    folder = os.path.join(runs_root(), name)
    return any(environment(it["pid"]).get(SCOPE.encode(), b"") != mine for it in live_supervisors(folder))


def lives(it: "run.RunHere") -> bool:
    """Returns whether a run has live processes. Looks for them if its record has none, as that may be wrong after a
    reboot or on a full disk."""
    return it["alive"] or bool(marked(it["run"]))


def others(own: "str | None") -> "list[run.LiveRun]":
    """Returns the live runs that have a description, except the run `own`."""
    found = [it for it in runs("", True) if it["run"] != own and "about" in it]
    found = [it for it in found if lives(it) and not elsewhere(it["run"])]
    return [{"run": it["run"], "about": it["about"], "devices": it["devices"]} for it in found]


def neighbours(spec: "Mapping[str, Any]") -> "list[run.LiveRun]":
    return [it for it in others(spec["run"]) if meet(spec["devices"], it["devices"])]


def be_alone(spec: "run_specs.Starting") -> None:
    """Waits until no other run uses the same GPUs. If two runs start at once, each finds the other, because a run is
    published before it checks. Then the older run stays. Raises Occupied if an older run is live, or if a younger run
    has not ended after YIELD_SECONDS."""
    until = time.monotonic() + YIELD_SECONDS
    mine = _age(spec["run"], spec["about"])
    while True:
        found = neighbours(spec)
        if not found:
            return
        if time.monotonic() > until or any(_age(it["run"], it["about"]) < mine for it in found):
            raise Occupied(found)
        time.sleep(0.05)


def _age(name: str, about: "run.About | None") -> "tuple[float, str]":
    return about["started"] if about else 0.0, name


def main() -> None:
    answer(lambda spec: {"event": "neighbours", "runs": neighbours(spec)})
