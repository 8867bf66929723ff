"""Connects to all nodes of a run and starts its supervisor on each; all or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from typing import TypeVar

from fleet.each import as_one, over
from fleet.errors import FleetError, HostFailed, Interrupted, PreflightError, Reason
from fleet.events import Notice, Round, Started
from fleet.model import Host, Result
from fleet.ops.launch.findings import beside, refuse
from fleet.ops.launch.plan import NodePlan, Plan
from fleet.ops.launch.record import RunRecord
from fleet.protocol.messages import run
from fleet.protocol.messages.values import Failed
from fleet.protocol.state import ARMED, COMMAND
from fleet.rules.units import counted
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.program import call

T = TypeVar("T")
START_SECONDS = 30.0
STOP_SECONDS = 15.0
SETTLE_SECONDS = 10.0  # after its ranks' start, in which they import their code and no sync replaces it


@contextmanager
def step(runtime: Runtime, name: str, hosts: int) -> Iterator[None]:
    """A part of the way to running ranks: says how long it took, and that nothing of it is under way any more."""
    began = time.monotonic()
    yield
    seconds = round(time.monotonic() - began, 3)
    runtime.emit(Round("", ()))
    runtime.emit(
        Notice(
            "info",
            f"{name}: {counted(hosts, 'host')}, {seconds:.1f} s",
            data={"event": "step", "time": time.time(), "step": name, "hosts": hosts, "seconds": seconds},
        )
    )


class Sessions:
    """Open connections by host name, made on first use. Close them all with close()."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._open: dict[str, Session] = {}

    def get(self, host: Host) -> Session:
        if host.name not in self._open:
            self._open[host.name] = self.runtime.transport.connect(host, self.runtime.cancel)
        return self._open[host.name]

    def take(self, host: Host) -> Session:
        """Hand the connection over; the taker closes it."""
        session = self.get(host)
        del self._open[host.name]
        return session

    def drop(self, host: Host) -> None:
        """The next get() makes another one."""
        if host.name in self._open:
            self._open.pop(host.name).close()

    def take_all(self, names: Iterable[str]) -> dict[str, Session]:
        """Hand over those to these hosts that are open, and close the others."""
        taken = {name: self._open.pop(name) for name in names if name in self._open}
        self.close()
        return taken

    def close(self) -> None:
        for session in self._open.values():
            session.close()
        self._open.clear()

    def each(
        self, hosts: tuple[Host, ...], work: Callable[[Host], T], what: str, cancel: Cancel | None = None
    ) -> tuple[dict[str, T], dict[str, FleetError]]:
        """Do `work` for all hosts at once: (answers, errors) by host name, both in the order of `hosts`. what: in
        words."""
        answers: dict[str, T] = {}

        def one(host: Host) -> Result:
            self.runtime.emit(Started(host.name, what))
            answers[host.name] = work(host)
            return Result(host.name, True)

        runtime = replace(self.runtime, fanout=len(hosts), cancel=cancel or self.runtime.cancel)
        results = over(hosts, runtime, one, what)
        errors = {result.host: result.error for result in results if result.error is not None}
        return {result.host: answers[result.host] for result in results if result.ok}, errors


def supervise_spec(plan: Plan, node: NodePlan, record: RunRecord) -> run.StartSpec:
    """What fleet/node/run/supervise.py is fed. Values of variables travel here and nowhere else."""
    remote = files("fleet") / "node/run"
    facts = plan.facts.get(node.host.name)
    code = facts.code if facts is not None and plan.options.preflight else None
    return {
        "run": plan.run_id,
        "host": node.host.name,
        "node_rank": node.node_rank,
        "argv": [word if isinstance(word, str) else word.as_spec() for word in node.start.argv],
        "env": dict(node.env),
        "env_expand": dict(node.env_expand),
        "cwd": node.workdir,
        "python": plan.job.python or node.host.python,
        "activate": node.host.activate,
        "ranks": list(node.ranks),
        "devices": None if node.host.devices is None else list(node.host.devices),
        "lease": record.lease,
        "grace": plan.options.grace,
        "node_timeout": plan.options.node_timeout,
        "time": time.time(),
        "code": code and {"state": code[0], "digest": code[1], "settle": SETTLE_SECONDS},
        "files": {
            **plan.job.files,
            COMMAND: node.start.command_file(),
            **{f"{name}.py": (remote / f"{name}.py").read_text("utf-8") for name in ("rank", "spawn")},
            ARMED: (remote / "arm.py").read_text("utf-8"),
        },
        "about": record.about(),
        "alone": plan.options.preflight and not plan.options.share and not record.attempt,
    }


def start_all(plan: Plan, record: RunRecord, sessions: Sessions) -> Mapping[str, run.Started]:
    """Start the supervisors; {host: its "started" answer}. When one fails the others are stopped, then it raises."""
    occupied: dict[str, list[run.LiveRun]] = {}

    def start(host: Host) -> run.Started:
        spec = supervise_spec(plan, plan.node(host.name), record)
        answer = call(
            sessions.get(host), "run.supervise", spec, run.Started | run.Neighbours | Failed, timeout=START_SECONDS
        )
        if answer["event"] == "neighbours":
            occupied[host.name] = answer["runs"]
            raise PreflightError("another run is live there", host=host.name)
        if answer["event"] == "failed":
            raise HostFailed(Reason.of_node(answer["message"]), host=host.name, hint=answer["hint"])
        return answer

    # an interrupt lets the starts under way end: what is not known to run cannot be stopped for sure
    answers, errors = sessions.each(plan.hosts, start, "start")
    if errors or sessions.runtime.cancel.is_set():
        stop_all(plan, sessions, 0.0, "another node did not start" if errors else "interrupted")
        if sessions.runtime.cancel.is_set():
            raise Interrupted("interrupted while starting; everything was stopped again")
        if occupied:  # since preflight
            others = {name: error for name, error in errors.items() if name not in occupied}
            refuse(plan, beside(plan, occupied), others, sessions.runtime.emit)
        ordered = sorted(errors.items(), key=lambda it: (isinstance(it[1], Interrupted), -it[1].exit_code))
        every = {host.name: errors.get(host.name) for host in plan.hosts}
        raise as_one(dict(ordered), sessions.runtime.emit, "not-started", "; everything was stopped again", every)
    return answers


def stop_all(plan: Plan, sessions: Sessions, grace: float, reason: str) -> None:
    """Run the stop program on all nodes; also forbids a supervisor that comes late to start."""
    spec: run.StopSpec = {"run": plan.run_id, "grace": grace, "reason": reason, "attempt": plan.attempt}

    def stop(host: Host) -> run.Stopped:
        return call(sessions.get(host), "run.stop", spec, run.Stopped, timeout=grace + STOP_SECONDS)

    sessions.each(plan.hosts, stop, "stop", Cancel())
