"""At which of their addresses hosts reach each other: asked of the hosts, all at once."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fleet.each import on_each
from fleet.model import Host, Result
from fleet.ops.init.choose import Address
from fleet.protocol.messages.facts import Reached
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.program import call

SECONDS = 10.0
PORTS = range(20000, 30000)
TRIES = 3
NEIGHBOURS = 8  # hosts that each visits: the ones behind it, in a ring


def run(hosts: Sequence[Host], candidates: Mapping[str, Sequence[Address]], runtime: Runtime) -> dict[str, set[str]]:
    """Host -> those of its candidates at which all hosts that tried it reached it."""
    if len(hosts) < 2:
        return {}
    together = replace(runtime, fanout=len(hosts))  # they have to meet
    for _ in range(TRIES):
        specs, wanted = plan([host.name for host in hosts], candidates)

        def task(session: Session, host: Host, specs: Mapping[str, Any] = specs) -> Result:
            said = call(session, "facts.reach", specs[host.name], Reached, cancel=runtime.cancel)
            return Result(host.name, ok=True, data=said)

        results = on_each(hosts, together, task, what="finding each other")
        if not any(result.data.get("error") for result in results):  # the port is taken on one of them
            break
    arrived = {int(key) for result in results for key in result.data.get("reached", ()) if key.isdecimal()}
    return {
        name: {text for text, visits in addresses.items() if visits <= arrived} for name, addresses in wanted.items()
    }


def plan(
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
