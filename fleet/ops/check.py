"""Plans and runs `fleet check`: one round trip a host fetches the facts, and rules turn them into findings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from fleet.codec import plain
from fleet.each import failed
from fleet.engines import engine
from fleet.errors import EXIT_HOST_FAILED, EXIT_OK, EXIT_PREFLIGHT, FleetError, Interrupted
from fleet.events import Notice
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops import bench, health, network, pairs
from fleet.ops.facts import HasFacts, ask, probe_specs
from fleet.ops.network import Measured
from fleet.ops.plans import Line, PerHost, around
from fleet.ops.sessions import Sessions
from fleet.protocol.messages.facts import Facts
from fleet.requests.hosts import Check
from fleet.rules.history import recalled, updated, with_past
from fleet.rules.judge import applied, causes_of, ignored, known_rules, silenced
from fleet.rules.rule import Finding, View, Want
from fleet.rules.view import view
from fleet.runtime import Runtime


@dataclass(frozen=True)
class Checked(Report):
    """Reports a check. views: host name -> its facts and the values derived from them, for every host that responded,
    in inventory order. measured: the results of --network. silenced: the findings that the inventory ignores for
    hosts."""

    views: Mapping[str, View] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    measured: Measured = Measured()
    silenced: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class CheckPlan:
    """Describes a check. specs: host name -> spec of fleet/node/preflight/probe.py. scope: the scope in which the names
    of hosts are unique, see fleet/ops/health.py."""

    hosts: tuple[Host, ...]
    request: Check
    specs: Mapping[str, Mapping[str, Any]]
    scope: str

    def describe(self) -> dict[str, Any]:
        """Returns the specs, with the names of variables only."""
        return {name: {**spec, "env": sorted(spec["env"])} for name, spec in self.specs.items()}

    def lines(self) -> Iterator[Line]:
        facts = "system, Python, torch, compilers, GPUs, network, clock and disks"
        yield f"would ask for the facts of {facts}; changes nothing"
        yield PerHost(
            {
                name: [
                    f"training interpreter {spec['python'] or 'python3'}",
                    *([f"workdir {spec['workdir']}"] if spec["workdir"] else []),
                    *around(spec),
                ]
                for name, spec in self.specs.items()
            }
        )


def plan(inventory: Inventory, request: Check) -> CheckPlan:
    """Returns the plan. Pure. Raises InventoryError if the inventory ignores a rule that does not exist."""
    known_rules(inventory.hosts)
    return CheckPlan(inventory.hosts, request, probe_specs(inventory, request), health.scope_of(inventory.source))


def run(plan: CheckPlan, runtime: Runtime) -> Checked:
    """Probes every host and applies the rules. The report's exit_code is the code of the error (such as 122) if a host
    could not be probed, or else 123 if a finding is an error, or else 0."""

    def task(host: Host) -> Facts:
        way = pairs.way(plan.hosts, host, master) if len(plan.hosts) > 1 else None
        return ask(sessions.get(host), {**plan.specs[host.name], "way": way, "health": True}, runtime.cancel)

    master = pairs.master(plan.hosts[0], runtime.transport) if plan.hosts else ""
    with closing(Sessions(runtime)) as sessions:
        facts, errors = sessions.each(plan.hosts, task, "asking", fanout=runtime.fanout)
        pairs.look(plan.hosts, facts, sessions)
        live = sorted({str(run["run"]) for one in facts.values() for run in one.get("runs") or ()})
        measured = Measured()
        there = tuple(host for host in plan.hosts if host.name in facts)
        if live and (plan.request.network or plan.request.bench):
            text = f"nothing is measured while runs are live: {', '.join(live)}"
            runtime.emit(Notice("warning", text, None, "again when they have ended"))
        else:
            if plan.request.network:
                measured = network.look(there, facts, plan.specs, sessions)
            if plan.request.bench:
                bench.measure(there, facts, plan.specs, sessions)
            if runtime.cancel.is_set() and (plan.request.network or plan.request.bench):
                raise Interrupted("interrupted while measuring")
    results = tuple(
        Result(host.name, ok=True, exit_status=0, answer=HasFacts(facts[host.name]))
        if host.name in facts
        else failed(host, errors[host.name])
        for host in plan.hosts
    )
    kept, wrong = health.load()
    for name, before in recalled(kept, facts, plan.scope).items():
        facts[name]["before"] = before
    views = {host.name: view_of(host, facts[host.name], plan.request) for host in there}
    found, quiet = applied(views), tuple(silenced(views))
    findings = tuple(with_past(causes_of(found, quiet), views))
    try:
        health.keep(lambda kept: updated(kept, views, [*found, *quiet], plan.scope, time.time()))
    except (OSError, FleetError, RuntimeError) as error:  # RuntimeError: the user has no home
        wrong = f"what was found is not kept for the next check: {error}"
    if wrong:
        runtime.emit(Notice("warning", wrong))
    code = exit_code_of(results)
    if code in (EXIT_OK, EXIT_HOST_FAILED) and any(finding.severity == "error" for finding in findings):
        code = EXIT_PREFLIGHT
    data = {
        "findings": plain(findings),
        "silenced": plain(quiet),
        **({"network": vars(measured)} if plan.request.network else {}),
    }
    return Checked("check", results, code, data, views, findings, measured, quiet)


def view_of(host: Host, facts: Mapping[str, Any], request: Check) -> View:
    """Returns a host's facts, together with the inventory's requirements for the host."""
    return view(
        facts,
        Want(
            host.name, host.slots, host.devices, engine(request.engine).modules, request.timeout, ignore=ignored(host)
        ),
    )
