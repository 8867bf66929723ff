"""Live runs that one which is to start here would share GPUs with, or all.

spec: {"run", "devices": of its GPUs, or null: all}. Answers J {"event": "neighbours", "runs": [...]}: see LiveRun in
fleet/protocol/messages/run.py.
"""

import os
import time

from fleet.node.base.errors import Refused, answer
from fleet.node.base.processes import environment
from fleet.node.base.run_folder import owners, runs_root
from fleet.node.base.types import Any, Mapping, run, run_specs
from fleet.node.run.list_runs import runs
from fleet.node.run.marks import marked
from fleet.protocol.state import SCOPE, meet

YIELD_SECONDS = 8.0  # in which a younger one goes that was turned away on another of its nodes


class Occupied(Refused):
    """runs: whose node it is."""

    def __init__(self, runs: "list[run.LiveRun]") -> None:
        Refused.__init__(self, "another run is live here")
        self.runs = runs


def elsewhere(name: str) -> bool:
    """A run that another scheduler's job holds: whose GPUs are whose is not this one's business."""
    mine = os.environ.get(SCOPE, "").encode()
    folder = os.path.join(runs_root(), name)
    return any(environment(it["pid"]).get(SCOPE.encode(), b"") != mine for it in owners(folder))


def lives(it: "run.RunHere") -> bool:
    """A run that a reboot or a full disk ended is on record as running, and holds nothing any more."""
    return it["alive"] or bool(marked(it["run"]))


def others(own: "str | None") -> "list[run.LiveRun]":
    """Returns the live runs, without that one, of which is known what they are."""
    found = [it for it in runs("", True) if it["run"] != own and "about" in it]
    found = [it for it in found if lives(it) and not elsewhere(it["run"])]
    return [{"run": it["run"], "about": it["about"], "devices": it["devices"]} for it in found]


def neighbours(spec: "Mapping[str, Any]") -> "list[run.LiveRun]":
    return [it for it in others(spec["run"]) if meet(spec["devices"], it["devices"])]


def be_alone(spec: "run_specs.Starting") -> None:
    """Waits until no other run uses what this one does. Of two that start at once each is known before it looks: the
    older one stays. Raises Occupied."""
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
