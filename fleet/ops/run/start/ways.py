"""Whether nodes reach each other at ports that nobody knows beforehand, as those of gloo and NCCL are: each the master
and its neighbours in the ring, both ways, all at once."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.model import Host
from fleet.ops.run.sessions import Sessions
from fleet.protocol.messages.facts import Facts, Listening, Reached
from fleet.transport.base import Cancel
from fleet.transport.program import Program, first_word, last_word

SECONDS = 1.0  # from the moment when all listen; where all is well it takes a round trip
MOST_SECONDS = 15.0  # until then: nodes do not begin at the same moment
TRIES = 2  # a port may be taken, a host be busy
PORTS = range(32768, 60000)  # the system's own choice, mostly
Ports = dict[str, dict[str, int]]  # host -> hosts that it is to reach, and the port that was tried there


def look(hosts: Sequence[Host], raw: Mapping[str, Facts], sessions: Sessions) -> None:
    """Add to the facts of those that answered: "unreached", hosts and ports, and "deaf", why it could not listen."""
    at = {name: (facts.get("network") or {}).get("address") for name, facts in raw.items()}
    ring = [host for host in hosts if at.get(host.name)]
    left: Ports = {host.name: {ring[i % len(ring)].name: 0 for i in (0, n - 1, n + 1)} for n, host in enumerate(ring)}
    for name, others in left.items():
        others.pop(name, None)
    deaf: dict[str, str] = {}
    for _ in range(TRIES):
        left = {name: others for name, others in left.items() if others}
        if left:
            left, deaf = _visit(ring, at, left, sessions)
    for name, error in deaf.items():
        raw[name]["deaf"] = error
    for name, others in left.items():
        raw[name]["unreached"] = {other: port for other, port in others.items() if other not in deaf}


def _visit(
    ring: Sequence[Host], at: Mapping[str, str | None], wanted: Ports, sessions: Sessions
) -> tuple[Ports, dict[str, str]]:
    """(those of `wanted` that were not reached, who could not listen and why)."""
    names = [host.name for host in ring]
    number = {name: n for n, name in enumerate(names)}
    first = random.randrange(PORTS.start, PORTS.stop - len(names))
    ports = {name: first + n for n, name in enumerate(names)}  # several may be on one machine
    tokens = {name: secrets.token_hex(16) for name in names}
    visitors = {name: sum(name in others for others in wanted.values()) for name in names}
    involved = tuple(host for host in ring if host.name in wanted or visitors[host.name])
    silent, lock, over = {host.name for host in involved}, threading.Lock(), Cancel()
    timer = threading.Timer(SECONDS, over.set)
    timer.daemon = True

    def listens(name: str) -> None:
        with lock:
            if name in silent:
                silent.remove(name)
                if not silent:
                    timer.start()

    def visit(name: str, other: str) -> int:
        return number[name] * len(names) + number[other]

    def task(host: Host) -> Reached:
        there = [(visit(host.name, name), name) for name in wanted.get(host.name, ())]
        spec: dict[str, Any] = {
            "port": ports[host.name],
            "token": tokens[host.name],
            "visitors": visitors[host.name],
            "seconds": MOST_SECONDS,
            "visits": [{"id": n, "address": at[name], "port": ports[name], "token": tokens[name]} for n, name in there],
        }
        cancel = sessions.runtime.cancel
        try:
            with Program(sessions.get(host), "preflight.reach", spec) as program:
                first_word(program, Listening, timeout=2 * MOST_SECONDS, cancel=cancel)
                forget = over.on_set(lambda: program.send({"op": "done"}))
                listens(host.name)
                try:
                    return last_word(program, Reached, timeout=2 * MOST_SECONDS, cancel=cancel)
                finally:
                    forget()
        finally:
            listens(host.name)

    found, _ = sessions.each(involved, task, "preflight")
    timer.cancel()
    left = {
        name: {other: ports[other] for other in others if str(visit(name, other)) not in found[name]["reached"]}
        for name, others in wanted.items()
        if name in found
    }
    return left, {name: answer["error"] for name, answer in found.items() if answer["error"]}
