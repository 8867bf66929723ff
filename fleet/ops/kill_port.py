"""Plans and runs `fleet kill-port`: shows the processes that listen on ports of all hosts, and ends those that the user
approves.

It takes two round trips. `look` fetches the listeners, from which `plan` makes the plan. `run` ends the approved
processes, which are identified by pid, start time and owner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

from fleet.answers.hosts import Listening, PortHolder
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


class Spared(NamedTuple):
    """Holds why a listener is not ended, and a hint."""

    reason: str
    hint: str | None = None


UNSEEN = Spared(
    "its process cannot be seen: another user's, in another container, or the kernel's",
    "connect as root to see and end other users' processes",
)
DECLINED = Spared("left alone, as you said")
UNKNOWN = Spared("the host did not answer any more: unknown")
NEWCOMER = Spared("it took the port over meanwhile", "something restarts it: end that, or run kill-port again")
OF_NODE = {"not permitted": "connect as root, or as that user"}  # reason reported by a node -> hint


def foreign(user: str) -> Spared:
    return Spared(f"it belongs to {user}", "--force ends other users' processes, where that is permitted")


@dataclass(frozen=True)
class Listener:
    """Describes a process that listens on a port of a host. facts: the node's entry, see fleet/node/ports/kill_port.py.

    spared: why the process is not ended, or None if it may be ended. ended: whether it has ended.
    """

    host: str
    facts: messages.Listener
    spared: Spared | None = None
    ended: bool = False

    @property
    def reason(self) -> str | None:
        return self.spared.reason if self.spared is not None else None

    @property
    def pid(self) -> int | None:
        return self.facts["pid"]

    @property
    def shown(self) -> PortHolder:
        return from_json(PortHolder, {**self.facts, "ended": self.ended, "reason": self.reason})


@dataclass(frozen=True)
class KillPlan:
    """Lists the listeners, and which of them are to be ended. results: the results of the scan, with an error for each
    host that the scan did not reach. unselected: the inventory's other hosts; a connection to one may enter at a
    selected host's address."""

    hosts: tuple[Host, ...]
    request: KillPort
    listeners: tuple[Listener, ...]
    results: tuple[Result, ...]
    unselected: tuple[Host, ...] = ()

    @property
    def targets(self) -> tuple[Listener, ...]:
        """Returns the listeners that would be ended."""
        return tuple(listener for listener in self.listeners if listener.spared is None)

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
    """Returns for each host the listeners on these ports, as Inside."""

    ssh_ports = ssh_ports_of((*inventory.hosts, *inventory.unselected), runtime)

    def task(session: Session, host: Host) -> Result:
        spec = {"op": "scan", "ports": list(ports), "dialled": ssh_ports.get(host.name, [])}
        answer = call(session, "ports.kill_port", spec, messages.Scanned, timeout=SCAN_SECONDS, cancel=runtime.cancel)
        return Result(host.name, ok=True, exit_status=0, answer=Inside(answer["listeners"]))

    return on_each(inventory.hosts, runtime, task, what="looking who listens")


def ssh_ports_of(hosts: Sequence[Host], runtime: Runtime) -> dict[str, list[int]]:
    """Returns host name -> the ports at which fleet connects to the host's address. Such a port may lead to another
    host of the inventory. The process on it carries SSH connections, even if it is not sshd."""
    targets = {}
    for host in hosts:
        with suppress(ConnectError):  # if the host is selected, on_each() reports the error when it connects
            if target := runtime.transport.resolve(host):
                targets[host.name] = target
    ports = grouped((target.address, target.port) for target in targets.values())
    return {name: sorted({*ports[target.address]}) for name, target in targets.items()}


def plan(inventory: Inventory, request: KillPort, found: tuple[Result, ...]) -> KillPlan:
    """Returns the plan: which of the listeners that `look` found are to be ended, and why others are not. Pure."""
    listeners = tuple(
        Listener(result.host, facts, why_spared(facts, request.force, request.runs))
        for result in found
        if result.ok
        for facts in result.read(Inside).value
    )
    return KillPlan(inventory.hosts, request, listeners, found, inventory.unselected)


def why_spared(facts: messages.Listener, force: bool, runs: Collection[str] = ()) -> Spared | None:
    """Returns why a listener is not ended, or None if it is to be ended. runs: ids or names of runs whose listeners may
    be ended."""
    if facts["pid"] is None:
        return UNSEEN
    if facts["refused"]:
        return Spared(f"{facts['refused']}, it is never ended")
    if not facts["own"] and not force:
        return foreign(facts["user"])
    run_id = facts["run_id"]
    if facts["live"] and run_id and not any(run in (run_id, run_name(run_id)) for run in runs):
        return Spared(
            f"it belongs to the live run {run_id}", f"'fleet stop {run_id}' ends it; or name it: --run {run_id}"
        )
    return None


def run(plan: KillPlan, runtime: Runtime) -> Report:
    """Ends the plan's targets. A host is ok if no process listens on the ports any more."""
    by_host = grouped((listener.host, listener) for listener in plan.targets)
    ssh_ports = ssh_ports_of((*plan.hosts, *plan.unselected), runtime)

    def task(session: Session, host: Host) -> Result:
        approved = sorted({(t.facts["pid"], t.facts["start"], t.facts["uid"]) for t in by_host[host.name]})
        spec = {
            "op": "end",
            "ports": sorted(plan.request.ports),
            "dialled": ssh_ports.get(host.name, []),
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
        return Result(host.name, ok=True, exit_status=0, answer=Inside(answer))

    hosts = [host for host in plan.hosts if host.name in by_host]
    ended = {result.host: result for result in on_each(hosts, runtime, task, what="ending")}
    return report(plan, ended)


def preview(plan: KillPlan) -> Report:
    """Returns the report of --dry-run: the listeners. Ends nothing."""
    shown = plan.shown
    results = tuple(replace(r, answer=Listening(shown[r.host])) for r in plan.results)
    return Report("kill-port", results, exit_code_of(results), {"dry_run": True})


def report(plan: KillPlan, ended: Mapping[str, Result]) -> Report:
    """Returns the report, with a result for each host. ended: host name -> result of the second round trip, or {} if
    there was no second one."""
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
    """Returns the error of a host on which a process still listens, or None if no process does."""
    held = [each for each in listeners if not each.ended]
    if not held:
        return None
    reasons = dict.fromkeys(
        f"port {each.facts['port']} is held{f' by pid {each.pid}' if each.pid else ''}: {each.reason}" for each in held
    )
    hint = next((each.spared.hint for each in held if each.spared is not None and each.spared.hint), None)
    return HostFailed(Reason.of_node("; ".join(reasons)), host=host, hint=hint)


def _outcome(listener: Listener, second: Result | None) -> Listener:
    if listener.spared is not None:
        return listener
    if second is None:
        return replace(listener, spared=DECLINED)
    if not second.ok:
        return replace(listener, spared=UNKNOWN)
    reported: messages.Ended = second.read(Inside).value
    reason = reported["reasons"].get(str(listener.pid))
    spared = Spared(reason, OF_NODE.get(reason)) if reason is not None else None
    return replace(listener, spared=spared, ended=listener.pid in reported["ended"])


def _newcomers(known: Sequence[Listener], second: Result | None) -> list[Listener]:
    """Returns the listeners that came after the scan, such as a worker that its master restarted. They are shown,
    not ended, because the user has not approved that."""
    if second is None or not second.ok:
        return []
    who = itemgetter("port", "protocol", "address", "pid", "start")
    seen = {who(each.facts) for each in known}
    return [
        Listener(second.host, facts, NEWCOMER)
        for facts in second.read(Inside).value["listeners"]
        if who(facts) not in seen
    ]
