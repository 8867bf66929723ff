"""`fleet kill-port`: shows the processes that listen on ports of all hosts, and ends those that the user approves.

It takes two round trips. `look` fetches the listeners, of which `plan` makes the plan. `run` ends the approved
processes, which are identified by pid, start time and owner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

from fleet.answers.hosts import Listening, PortHolder, Preview
from fleet.codec import from_json, plain
from fleet.each import on_each
from fleet.errors import EXIT_HOST_FAILED, EXIT_OK, ConnectError, HostFailed, Reason
from fleet.model import Host, Inside, Inventory, Report, Result, exit_code_of, grouped
from fleet.ops.plans import Line
from fleet.protocol.messages import ports as messages
from fleet.protocol.state import run_name
from fleet.requests.hosts import KillPort
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.program import call

SCAN_SECONDS = 30.0
AFTER_GRACE_SECONDS = 20.0


class Left(NamedTuple):
    """Holds why a listener is not ended, and a hint."""

    reason: str
    hint: str | None = None


UNSEEN = Left(
    "its process cannot be seen: another user's, in another container, or the kernel's",
    "connect as root to see and end other users' processes",
)
DECLINED = Left("left alone, as you said")
UNKNOWN = Left("the host did not answer any more: unknown")
NEWCOMER = Left("it took the port over meanwhile", "something restarts it: end that, or run kill-port again")
OF_NODE = {"not permitted": "connect as root, or as that user"}  # reason reported by a node -> hint


def foreign(user: str) -> Left:
    return Left(f"it belongs to {user}", "--force ends other users' processes, where that is permitted")


@dataclass(frozen=True)
class Scanned(Inside):
    """Holds the listeners of a host."""

    listeners: Sequence[messages.Listener]


@dataclass(frozen=True)
class Over(Inside):
    """Holds what a node reported after ending listeners."""

    told: messages.Ended


@dataclass(frozen=True)
class Listener:
    """Describes a process that listens on a port of a host. facts: the node's entry, see fleet/node/ports/kill_port.py.

    left: why it is not ended, None if it may be. ended: it has ended.
    """

    host: str
    facts: messages.Listener
    left: Left | None = None
    ended: bool = False

    @property
    def reason(self) -> str | None:
        return self.left.reason if self.left is not None else None

    @property
    def pid(self) -> int | None:
        return self.facts["pid"]

    @property
    def shown(self) -> PortHolder:
        return from_json(PortHolder, {**self.facts, "ended": self.ended, "reason": self.reason})


@dataclass(frozen=True)
class KillPlan:
    """Lists the listeners, and which of them are to be ended. results: of the scan, with an error for each host that it
    did not reach. unselected: the inventory's other hosts; a connection to one may enter at a selected host's
    address."""

    hosts: tuple[Host, ...]
    request: KillPort
    listeners: tuple[Listener, ...]
    results: tuple[Result, ...]
    unselected: tuple[Host, ...] = ()

    @property
    def targets(self) -> tuple[Listener, ...]:
        """Returns the listeners that would be ended."""
        return tuple(listener for listener in self.listeners if listener.left is None)

    @property
    def shown(self) -> dict[str, list[PortHolder]]:
        """Returns the listeners by host name."""
        return {h.name: [each.shown for each in self.listeners if each.host == h.name] for h in self.hosts}

    def describe(self) -> dict[str, Any]:
        return {name: plain(listeners) for name, listeners in self.shown.items()}

    def lines(self) -> Iterator[Line]:
        for each in self.listeners:
            what = f"port {each.facts['port']}, pid {each.pid or '?'}, {each.facts['command'] or '?'}"
            yield f"{each.host}: {what}: {each.reason or 'would be ended'}"


def look(inventory: Inventory, ports: Collection[int], runtime: Runtime) -> tuple[Result, ...]:
    """Returns for each host the listeners on these ports, as Scanned."""

    ways = dialled((*inventory.hosts, *inventory.unselected), runtime)

    def task(session: Session, host: Host) -> Result:
        spec = {"op": "scan", "ports": list(ports), "dialled": ways.get(host.name, [])}
        answer = call(session, "ports.kill_port", spec, messages.Scanned, timeout=SCAN_SECONDS, cancel=runtime.cancel)
        return Result(host.name, ok=True, exit_status=0, answer=Scanned(answer["listeners"]))

    return on_each(inventory.hosts, runtime, task, what="looking who listens")


def dialled(hosts: Sequence[Host], runtime: Runtime) -> dict[str, list[int]]:
    """Returns host name -> the ports at which fleet connects to the host's address, be it for this host or for another
    one that is forwarded there. What listens on such a port carries connections, even if it is not sshd."""
    targets = {}
    for host in hosts:
        with suppress(ConnectError):  # connecting to a selected host reports it
            if target := runtime.transport.resolve(host):
                targets[host.name] = target
    ports = grouped((target.address, target.port) for target in targets.values())
    return {name: sorted({*ports[target.address]}) for name, target in targets.items()}


def plan(inventory: Inventory, request: KillPort, found: tuple[Result, ...]) -> KillPlan:
    """Returns the plan: which of the listeners that `look` found are to be ended, and why others are not. Pure."""
    listeners = tuple(
        Listener(result.host, facts, why_left(facts, request.force, request.runs))
        for result in found
        if result.ok
        for facts in result.read(Scanned).listeners
    )
    return KillPlan(inventory.hosts, request, listeners, found, inventory.unselected)


def why_left(facts: messages.Listener, force: bool, runs: Collection[str] = ()) -> Left | None:
    """Returns why a listener is not ended, None if it is to be. runs: ids or names of runs that may lose theirs."""
    if facts["pid"] is None:
        return UNSEEN
    if facts["refused"]:
        return Left(f"{facts['refused']}, it is never ended")
    if not facts["own"] and not force:
        return foreign(facts["user"])
    run_id = facts["run_id"]
    if facts["live"] and run_id and not any(run in (run_id, run_name(run_id)) for run in runs):
        return Left(
            f"it belongs to the live run {run_id}", f"'fleet stop {run_id}' ends it; or name it: --run {run_id}"
        )
    return None


def run(plan: KillPlan, runtime: Runtime) -> Report:
    """Ends the plan's targets. A host is ok if no process listens on the ports any more."""
    by_host = grouped((listener.host, listener) for listener in plan.targets)
    ways = dialled((*plan.hosts, *plan.unselected), runtime)

    def task(session: Session, host: Host) -> Result:
        approved = sorted({(t.facts["pid"], t.facts["start"], t.facts["uid"]) for t in by_host[host.name]})
        spec = {
            "op": "end",
            "ports": sorted(plan.request.ports),
            "dialled": ways.get(host.name, []),
            "approved": approved,
            "grace": plan.request.grace,
            "force": plan.request.force,
        }
        answer = call(
            session,
            "ports.kill_port",
            spec,
            messages.Ended,
            timeout=plan.request.grace + AFTER_GRACE_SECONDS,
            cancel=runtime.cancel,
        )
        return Result(host.name, ok=True, exit_status=0, answer=Over(answer))

    hosts = [host for host in plan.hosts if host.name in by_host]
    ended = {result.host: result for result in on_each(hosts, runtime, task, what="ending")}
    return report(plan, ended)


def preview(plan: KillPlan) -> Report:
    """Returns the report of --dry-run: who listens. Nothing is ended."""
    shown = plan.shown
    results = tuple(replace(r, answer=Listening(shown[r.host])) for r in plan.results)
    return Report("kill-port", results, exit_code_of(results), answer=Preview())


def report(plan: KillPlan, ended: Mapping[str, Result]) -> Report:
    """Returns the report, with a result for each host. ended: host name -> result of the second round trip, {} if there
    was none."""
    results = []
    for result in plan.results:
        second = ended.get(result.host)
        listeners = [_outcome(each, second) for each in plan.listeners if each.host == result.host]
        listeners += _newcomers(listeners, second)
        error = result.error or (second.error if second else None) or _held(result.host, listeners)
        results.append(
            Result(
                result.host,
                error is None,
                EXIT_HOST_FAILED if error else EXIT_OK,
                error=error,
                answer=Listening([listener.shown for listener in listeners]),
            )
        )
    return Report("kill-port", tuple(results), exit_code_of(tuple(results)))


def _held(host: str, listeners: Sequence[Listener]) -> HostFailed | None:
    """Returns the error of a host where a process still listens, None without one."""
    left = [each for each in listeners if not each.ended]
    if not left:
        return None
    reasons = dict.fromkeys(
        f"port {each.facts['port']} is held{f' by pid {each.pid}' if each.pid else ''}: {each.reason}" for each in left
    )
    hint = next((each.left.hint for each in left if each.left is not None and each.left.hint), None)
    return HostFailed(Reason.of_node("; ".join(reasons)), host=host, hint=hint)


def _outcome(listener: Listener, second: Result | None) -> Listener:
    if listener.left is not None:
        return listener
    if second is None:
        return replace(listener, left=DECLINED)
    if not second.ok:
        return replace(listener, left=UNKNOWN)
    reason = second.read(Over).told["reasons"].get(str(listener.pid))
    left = Left(reason, OF_NODE.get(reason)) if reason is not None else None
    return replace(listener, left=left, ended=listener.pid in second.read(Over).told["ended"])


def _newcomers(known: Sequence[Listener], second: Result | None) -> list[Listener]:
    """Returns the listeners that came after the scan, such as a worker that its master restarted. They are shown,
    not ended, because the user has not approved that."""
    if second is None or not second.ok:
        return []
    who = itemgetter("port", "protocol", "address", "pid", "start")
    seen = {who(each.facts) for each in known}
    return [
        Listener(second.host, facts, NEWCOMER)
        for facts in second.read(Over).told["listeners"]
        if who(facts) not in seen
    ]
