"""Asks one host for its facts, for `check` and for a launch's preflight."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fleet.engines import engine
from fleet.errors import ProtocolError
from fleet.model import Host, Inventory
from fleet.protocol.frames import MESSAGE
from fleet.protocol.messages.facts import Facts, Probed
from fleet.protocol.messages.values import Training
from fleet.requests.hosts import Check
from fleet.transport.base import Cancel, Session
from fleet.transport.program import Program

SILENCE_SECONDS = 15.0
CLOCK_SAMPLES = 4


@dataclass(frozen=True)
class HasFacts:
    """What a host told."""

    facts: Any


def training(inventory: Inventory, host: Host) -> Training:
    """What a node program is told of the environment of a host's training interpreter."""
    return {
        "python": host.python,
        "activate": host.activate,
        "env": inventory.env_for(host),
        "workdir": host.workdir,
    }


def asked(inventory: Inventory, request: Check) -> dict[str, dict[str, Any]]:
    """Returns what the probe of each host is fed."""
    common = {"deadline": request.timeout, "modules": list(engine(request.engine).modules)}
    return {host.name: {**training(inventory, host), **common} for host in inventory.hosts}


def ask(session: Session, spec: Mapping[str, Any], cancel: Cancel, *, hurry: Cancel | None = None) -> Facts:
    """What node/preflight/probe.py reports, fed `spec`. hurry: ends the host's waiting for others. Its clock is asked
    for while its steps run: no round trip of its own."""
    facts: Facts = {}
    clock = CLOCK_SAMPLES
    best: tuple[float, float] | None = None
    with Program(session, "preflight.probe", spec) as program, ExitStack() as at_end:
        deadline = program.clock.monotonic() + spec["deadline"] + 2 * SILENCE_SECONDS
        if hurry:
            at_end.callback(hurry.on_set(lambda: program.send({"op": "done"})))
        asked = time.time()  # until python has started there, so the first answer is the least certain one
        program.send({"op": "clock"})
        for frame in program.frames(silence=SILENCE_SECONDS, deadline=deadline, cancel=cancel):
            message = frame.decode(Probed) if frame.kind == MESSAGE else {}
            facts = message.get("facts") or facts
            if "clock" in message:
                best = better(best, asked, message["clock"], time.time())
                clock -= 1
                if clock > 0:
                    asked = time.time()
                    program.send({"op": "clock"})
    if not facts:
        raise ProtocolError("it told no facts", session.host.name)
    if best is not None:
        facts["clock"] = {"offset": round(best[0], 6), "uncertainty": round(best[1], 6)}
    return facts


def better(best: tuple[float, float] | None, asked: float, theirs: float, now: float) -> tuple[float, float] | None:
    """(offset, uncertainty) in seconds, the node's clock less ours, of the fastest round trip so far: it was read at
    the middle of the trip, give or take half of it."""
    if now < asked:
        return best
    sample = (theirs - (asked + now) / 2, (now - asked) / 2)
    return sample if best is None or sample[1] < best[1] else best
