"""Plans of runs, for what takes one: made as `fleet launch` makes them, and nothing is asked of any host."""

from __future__ import annotations

from typing import Any

from fleet.model import Host, Inventory
from fleet.ops.run.plan.plan import Plan as Plan
from fleet.ops.run.plan.plan import plan_of
from fleet.requests.launch import Launch


def planned(*hosts: Host, script: str = "t.py", run: str = "r", **options: Any) -> Plan:
    """Returns the plan of a run with that id. options: those of `fleet launch`."""
    return plan_of(Inventory(hosts), Launch(script, claims=run, **options))
