"""`fleet check`: one round trip a host fetches the facts, rules turn them into findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from fleet.codec import plain
from fleet.each import failed
from fleet.engines import engine
from fleet.errors import EXIT_HOST_FAILED, EXIT_OK, EXIT_PREFLIGHT
from fleet.events import Notice
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops import network, pairs
from fleet.ops.facts import HasFacts, ask, asked
from fleet.ops.network import Measured
from fleet.ops.plans import Line, PerHost, around
from fleet.ops.sessions import Sessions
from fleet.protocol.messages.facts import Facts
from fleet.requests.hosts import Check
from fleet.rules.judge import judge
from fleet.rules.rule import Finding, View, Want
from fleet.rules.view import view
from fleet.runtime import Runtime


@dataclass(frozen=True)
class Checked(Report):
    """views: host name -> its facts with what follows from them, of every host that answered, in inventory order.
    measured: of all hosts together, with --network."""

    views: Mapping[str, View] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    measured: Measured = Measured()


@dataclass(frozen=True)
class CheckPlan:
    """specs: host name -> what fleet/node/preflight/probe.py is fed."""

    hosts: tuple[Host, ...]
    request: Check
    specs: Mapping[str, Mapping[str, Any]]

    def describe(self) -> dict[str, Any]:
        """Names of variables, never their values."""
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
    """Pure: what each host is to report."""
    return CheckPlan(inventory.hosts, request, asked(inventory, request))


def run(plan: CheckPlan, runtime: Runtime) -> Checked:
    """Probe every host and judge them. exit_code: 122 and its like when a host could not be probed, else 123 with an
    error among the findings, else 0."""

    def task(host: Host) -> Facts:
        way = pairs.way(plan.hosts, host, master) if len(plan.hosts) > 1 else None
        return ask(sessions.get(host), {**plan.specs[host.name], "way": way}, runtime.cancel)

    master = pairs.master(plan.hosts[0], runtime.transport) if plan.hosts else ""
    with closing(Sessions(runtime)) as sessions:
        facts, errors = sessions.each(plan.hosts, task, "asking", fanout=runtime.fanout)
        pairs.look(plan.hosts, facts, sessions)
        live = sorted({str(run["run"]) for one in facts.values() for run in one.get("runs") or ()})
        measured = Measured()
        if plan.request.network and live:
            text = f"bandwidth is not measured beside runs that are live: {', '.join(live)}"
            runtime.emit(Notice("warning", text, None, "again when they have ended"))
        elif plan.request.network:
            measured = network.look(
                tuple(host for host in plan.hosts if host.name in facts), facts, plan.specs, sessions
            )
    results = tuple(
        Result(host.name, ok=True, exit_status=0, answer=HasFacts(facts[host.name]))
        if host.name in facts
        else failed(host, errors[host.name])
        for host in plan.hosts
    )
    views = {host.name: view_of(host, facts[host.name], plan.request) for host in plan.hosts if host.name in facts}
    findings = tuple(judge(views))
    code = exit_code_of(results)
    if code in (EXIT_OK, EXIT_HOST_FAILED) and any(finding.severity == "error" for finding in findings):
        code = EXIT_PREFLIGHT
    data = {
        "findings": plain(findings),
        **({"network": vars(measured)} if plan.request.network else {}),
    }
    return Checked("check", results, code, data, views, findings, measured)


def view_of(host: Host, facts: Mapping[str, Any], request: Check) -> View:
    """A host's facts against what the inventory wants of it."""
    return view(facts, Want(host.name, host.slots, host.devices, engine(request.engine).modules, request.timeout))
