"""What hosts are asked: their keys, their facts, then at which of their addresses they reach each other."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.each import failed, on_each
from fleet.errors import FleetError
from fleet.model import Host, Inside, Inventory, Result
from fleet.ops import check, setup_ssh
from fleet.ops.facts import HasFacts, ask
from fleet.ops.init.choose import Address
from fleet.ops.setup_ssh import SetupRuntime
from fleet.ops.setup_ssh.enrol import settle
from fleet.protocol.messages.facts import Facts, Reached
from fleet.requests.hosts import Check, SetupSsh
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.program import call
from fleet.transport.ssh.transport import SshTransport


def trust(inventory: Inventory, tofu: bool, runtime: SetupRuntime) -> tuple[Inventory, dict[str, Result]]:
    """The hosts with the keys that were confirmed, gateways that are none of them among the unselected; and those that
    are not to be trusted. By setup-ssh's rules: what is on file here or in the inventory is held to, and nothing is
    written."""
    assert isinstance(runtime.transport, SshTransport)
    failures = dict[str, Result]()
    for host in inventory.hosts:
        try:
            runtime.transport.route(host)
        except FleetError as error:  # what the ssh config says of it is nothing that fleet does
            failures[host.name] = failed(host, error)
    clear = replace(inventory, hosts=tuple(host for host in inventory.hosts if host.name not in failures))
    setup = setup_ssh.plan(clear, clear, SetupSsh(mesh=False, tofu=tofu), Path.home())
    for level in setup.levels:
        transport = SshTransport(runtime.transport.options, hosts=(*inventory.hosts, *inventory.unselected))
        try:
            settled = settle(level, setup.request, transport, runtime)
        finally:
            transport.close()
        failures.update(settled.failures)
        keys = {plan.name: key.fingerprint for plan, key in settled.accepted}
        pinned = (replace(host, host_key=host.host_key or keys.get(host.name)) for host in inventory.hosts)
        ways = [replace(each.host, host_key=key.fingerprint) for each, key in settled.accepted if each.gateway]
        inventory = replace(inventory, hosts=tuple(pinned), unselected=(*inventory.unselected, *ways))
    return inventory, failures


def facts(inventory: Inventory, folder: str, python: str, runtime: Runtime) -> dict[str, Result]:
    """What the hosts tell, as HasFacts. folder, python: whether they have it, too."""
    specs = check.plan(inventory, Check()).specs

    def task(session: Session, host: Host) -> Result:
        spec = {**specs[host.name], "python": host.python or python, "workdir": folder, "survey": True}
        return Result(host.name, ok=True, exit_status=0, answer=HasFacts(ask(session, spec, runtime.cancel)))

    return {result.host: result for result in on_each(inventory.hosts, runtime, task, what="asking")}


def told(results: Mapping[str, Result]) -> dict[str, Facts]:
    """The facts of those that answered."""
    return {name: result.read(HasFacts).facts for name, result in results.items() if result.ok}


SECONDS = 10.0
MARGIN_SECONDS = 30.0  # for a busy node; one that only says that it lives is not waited for
PORTS = range(20000, 30000)
TRIES = 3
NEIGHBOURS = 8  # hosts that each visits: the ones behind it, in a ring


@dataclass(frozen=True)
class Visited(Inside):
    """Who came to a host."""

    told: Reached


def reach(hosts: Sequence[Host], candidates: Mapping[str, Sequence[Address]], runtime: Runtime) -> dict[str, set[str]]:
    """Host -> those of its candidates at which all hosts that tried it reached it."""
    if len(hosts) < 2:
        return {}
    together = replace(runtime, fanout=len(hosts))  # they have to meet
    for _ in range(TRIES):
        specs, wanted = plan_visits([host.name for host in hosts], candidates)

        def task(session: Session, host: Host, specs: Mapping[str, Any] = specs) -> Result:
            limit = SECONDS + MARGIN_SECONDS
            said = call(session, "preflight.reach", specs[host.name], Reached, timeout=limit, cancel=runtime.cancel)
            return Result(host.name, ok=True, answer=Visited(said))

        results = on_each(hosts, together, task, what="finding each other")
        told = [result.answer.told for result in results if isinstance(result.answer, Visited)]
        if not any(each.get("error") for each in told):  # the port is taken on one of them
            break
    arrived = {int(key) for each in told for key in each["reached"] if key.isdecimal()}
    return {
        name: {text for text, visits in addresses.items() if visits <= arrived} for name, addresses in wanted.items()
    }


def plan_visits(
    names: Sequence[str], candidates: Mapping[str, Sequence[Address]]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, set[int]]]]:
    """What each host is told, and host -> address -> the visits that are to arrive there."""
    port = random.choice(PORTS)
    tokens = {name: secrets.token_hex(16) for name in names}
    wanted: dict[str, dict[str, set[int]]] = {name: {} for name in names}
    visits: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    count = 0
    for index, name in enumerate(names):
        for step in range(1, min(NEIGHBOURS, len(names) - 1) + 1):
            other = names[(index + step) % len(names)]
            for address in candidates[other]:
                visits[name].append({"id": count, "address": address.text, "token": tokens[other]})
                wanted[other].setdefault(address.text, set()).add(count)
                count += 1
    specs = {
        name: {
            "port": port,
            "token": tokens[name],
            "visitors": sum(map(len, wanted[name].values())),
            "seconds": SECONDS,
            "visits": visits[name],
        }
        for name in names
    }
    return specs, wanted
