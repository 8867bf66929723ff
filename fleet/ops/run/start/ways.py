"""Whether nodes reach each other at ports that nobody knows beforehand, as those of gloo and NCCL are: each the master
and its neighbours in the ring, both ways, all at once."""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.model import Host
from fleet.ops.run.sessions import Sessions
from fleet.protocol.messages.facts import Facts, Reached
from fleet.transport.program import call

SECONDS = 5.0  # nodes do not begin at the same moment; where all is well it takes a round trip
TRIES = 2  # a port may be taken, a host be busy
PORTS = range(32768, 60000)  # the system's own choice, mostly


def unreached(hosts: Sequence[Host], raw: Mapping[str, Facts], sessions: Sessions) -> dict[str, dict[str, int]]:
    """Host name -> the hosts that it does not reach, and the port that was tried there. raw: of those that answered."""
    at = {name: (facts.get("network") or {}).get("address") for name, facts in raw.items()}
    ring = [host for host in hosts if at.get(host.name)]
    left = {host.name: {ring[i % len(ring)].name: 0 for i in (0, n - 1, n + 1)} for n, host in enumerate(ring)}
    for name, others in left.items():
        others.pop(name, None)
    for _ in range(TRIES):
        left = {name: others for name, others in left.items() if others}
        if left:
            left = _visit(ring, at, left, sessions)
    return left


def _visit(
    ring: Sequence[Host], at: Mapping[str, str | None], wanted: Mapping[str, Mapping[str, int]], sessions: Sessions
) -> dict[str, dict[str, int]]:
    """Those of `wanted` that were not reached, of those that listened."""
    names = [host.name for host in ring]
    number = {name: n for n, name in enumerate(names)}
    first = random.randrange(PORTS.start, PORTS.stop - len(names))
    ports = {name: first + n for n, name in enumerate(names)}  # several may be on one machine
    tokens = {name: secrets.token_hex(16) for name in names}
    visitors = {name: sum(name in others for others in wanted.values()) for name in names}

    def visit(name: str, other: str) -> int:
        return number[name] * len(names) + number[other]

    def task(host: Host) -> Reached:
        there = [(visit(host.name, name), name) for name in wanted.get(host.name, ())]
        spec: dict[str, Any] = {
            "port": ports[host.name],
            "token": tokens[host.name],
            "visitors": visitors[host.name],
            "seconds": SECONDS,
            "visits": [{"id": n, "address": at[name], "port": ports[name], "token": tokens[name]} for n, name in there],
        }
        cancel = sessions.runtime.cancel
        return call(sessions.get(host), "preflight.reach", spec, Reached, timeout=4 * SECONDS, cancel=cancel)

    involved = tuple(host for host in ring if host.name in wanted or visitors[host.name])
    told, _ = sessions.each(involved, task, "preflight")
    deaf = {name for name in names if name not in told or told[name]["error"]}
    return {
        name: {
            other: ports[other]
            for other in others
            if other not in deaf and str(visit(name, other)) not in told[name]["reached"]
        }
        for name, others in wanted.items()
        if name in told
    }
