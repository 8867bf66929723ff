"""What the rules find in facts of hosts: as `fleet check` and `fleet launch` judge them; and of a host that is late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleet.errors import ConnectError
from fleet.model import Host, Result
from fleet.ops.check import Checked as Checked
from fleet.ops.check import view_of
from fleet.ops.run.plan.findings import findings, late_findings
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.start.preflight import known_of
from fleet.requests.hosts import Check
from fleet.rules.judge import judge
from fleet.rules.rule import Finding

Facts = Mapping[str, Mapping[str, Any]]  # by host


def of_check(hosts: Sequence[Host], facts: Facts, engine: str = "torchrun", failed: Sequence[Result] = ()) -> Checked:
    """failed: of hosts that have no facts."""
    views = {host.name: view_of(host, facts[host.name], Check(engine=engine)) for host in hosts if host.name in facts}
    results = (*(Result(name, True, 0) for name in views), *failed)
    return Checked("check", results, 0, views=views, findings=tuple(judge(views)))


def unreachable(names: Sequence[str]) -> list[Result]:
    """Returns the results of hosts that refuse connections."""
    return [Result(name, False, error=ConnectError("refused", host=name)) for name in names]


def of_launch(plan: Plan, facts: Facts, *, complete: bool = True) -> list[Finding]:
    """complete: all nodes answered."""
    return findings(plan, facts, complete)


def of_late(plan: Plan, running: Facts, host: str, facts: Mapping[str, Any]) -> list[Finding]:
    """Of a host that comes when those others run already."""
    known = plan.refine({name: known_of(dict(each)) for name, each in running.items()})  # type: ignore[arg-type]
    return late_findings(known, host, facts)
