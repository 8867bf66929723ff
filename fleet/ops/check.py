"""`fleet check`: one round trip a host brings the facts, rules turn them into findings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.each import on_each
from fleet.engines import engine
from fleet.errors import EXIT_HOST_FAILED, EXIT_OK, EXIT_PREFLIGHT, ProtocolError
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops.plans import Line, PerHost, around
from fleet.protocol.frames import MESSAGE
from fleet.protocol.messages.facts import Facts, Probed
from fleet.rules.judge import judge
from fleet.rules.matrix import matrix
from fleet.rules.rule import Finding, View, Want
from fleet.rules.view import view
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.frames import MISFITS
from fleet.transport.program import Program

CLOCK_SAMPLES = 4
SILENCE_SECONDS = 15.0


@dataclass(frozen=True)
class CheckOptions:
    """step_timeout: seconds a probe step has on the node; all of them run at once. engine: what is to run there."""

    step_timeout: float = 20.0
    engine: str = "torchrun"


@dataclass(frozen=True)
class Checked(Report):
    """views: host name -> its facts with what follows from them, of every host that answered, in inventory order."""

    views: Mapping[str, View] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class CheckPlan:
    """specs: host name -> what fleet/node/facts/probe.py is fed."""

    hosts: tuple[Host, ...]
    options: CheckOptions
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


def plan(inventory: Inventory, options: CheckOptions) -> CheckPlan:
    """Pure: what each host is to tell."""
    specs = {
        host.name: {
            "python": host.python,
            "activate": host.activate,
            "env": inventory.env_for(host),
            "workdir": host.workdir,
            "deadline": options.step_timeout,
        }
        for host in inventory.hosts
    }
    return CheckPlan(inventory.hosts, options, specs)


def run(plan: CheckPlan, runtime: Runtime) -> Checked:
    """Probe every host and judge them. exit_code: 122 and its like when a host could not be asked, else 123 with an
    error among the findings, else 0."""
    options = plan.options

    def task(session: Session, host: Host) -> Result:
        facts = probe(session, plan.specs[host.name], options, runtime)
        try:
            seen = {host.name: view_of(host, facts, options)}
            judge(seen), matrix(seen, 2)
        except MISFITS as error:  # a broken node must not cost the others their comparison
            raise ProtocolError(f"facts that make no sense ({type(error).__name__}: {error})", host.name) from error
        return Result(host.name, ok=True, exit_status=0, data={"facts": facts})

    results = on_each(plan.hosts, runtime, task, what="asking")
    views = {
        host.name: view_of(host, r.data["facts"], options) for host, r in zip(plan.hosts, results, strict=True) if r.ok
    }
    findings = tuple(judge(views))
    code = exit_code_of(results)
    if code in (EXIT_OK, EXIT_HOST_FAILED) and any(finding.severity == "error" for finding in findings):
        code = EXIT_PREFLIGHT
    return Checked("check", results, code, {"findings": [f.as_json() for f in findings]}, views, findings)


def view_of(host: Host, facts: Mapping[str, Any], options: CheckOptions) -> View:
    """A host's facts against what the inventory wants of it."""
    return view(facts, Want(host.name, host.slots, host.devices, engine(options.engine).modules, options.step_timeout))


def probe(session: Session, spec: Mapping[str, Any], options: CheckOptions, runtime: Runtime) -> Facts:
    """The facts of one host. While its steps run, the clock is asked for: no round trip of its own."""
    facts: Facts = {}
    best: tuple[float, float] | None = None
    left = CLOCK_SAMPLES
    deadline = time.monotonic() + options.step_timeout + 2 * SILENCE_SECONDS
    host = session.host.name
    with Program(session, "facts.probe", spec) as program:
        program.send({"op": "clock"})
        # the first answer tells when python had started there, nothing about the clock
        asked: float | None = None
        for frame in program.frames(silence=SILENCE_SECONDS, deadline=deadline, cancel=runtime.cancel):
            if frame.kind != MESSAGE:
                continue
            message = frame.decode(Probed)
            facts = message.get("facts") or facts
            if "clock" in message:
                best = better(best, asked, message["clock"], time.time())
                left -= 1
                if left > 0:
                    asked = time.time()
                    program.send({"op": "clock"})
    if not facts:
        raise ProtocolError("it told no facts", host)
    if best is not None:
        facts["clock"] = {"offset": round(best[0], 6), "uncertainty": round(best[1], 6)}
    return facts


def better(
    best: tuple[float, float] | None, asked: float | None, theirs: float, now: float
) -> tuple[float, float] | None:
    """(offset, uncertainty) in seconds, the node's clock less ours, of the fastest round trip so far: it was read at
    the middle of the trip, give or take half of it."""
    if asked is None or now < asked:
        return best
    sample = (theirs - (asked + now) / 2, (now - asked) / 2)
    return sample if best is None or sample[1] < best[1] else best
