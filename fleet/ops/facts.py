"""Fetches the facts of one host, for `check` and for a launch's preflight."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from typing import Any

from fleet.engines import engine
from fleet.errors import ProtocolError
from fleet.model import Host, Inventory
from fleet.protocol.frames import MESSAGE
from fleet.protocol.messages.facts import Facts, Probed
from fleet.protocol.messages.values import Training
from fleet.requests.hosts import Check
from fleet.transport.base import Cancel, Session
from fleet.transport.program import SILENCE_SECONDS, Program

CLOCK_SAMPLES = 4


@dataclass(frozen=True)
class HasFacts:
    """Holds the facts that a host reported."""

    facts: Any


def training(inventory: Inventory, host: Host) -> Training:
    """Returns the part of a node program's spec that describes a host's training interpreter and its environment."""
    return {
        "python": host.python,
        "activate": host.activate,
        "env": inventory.env_for(host),
        "workdir": host.workdir,
    }


def probe_specs(inventory: Inventory, request: Check) -> dict[str, dict[str, Any]]:
    """Returns host name -> the spec of its probe."""
    common = {"deadline": request.timeout, "modules": list(engine(request.engine).modules)}
    return {host.name: {**training(inventory, host), **inside(host), **common} for host in inventory.hosts}


def inside(host: Host) -> dict[str, Any]:
    """Returns the part of a spec that differs if training runs in a container. The host's `python` and `activate` are
    for the node itself, so they do not apply in a container."""
    return {"container": host.container, "python": None, "activate": None} if host.container else {}


def ask(session: Session, spec: Mapping[str, Any], cancel: Cancel, *, hurry: Cancel | None = None) -> Facts:
    """Returns the report of node/preflight/probe.py for `spec`. hurry: a latch that ends the node's wait for other
    nodes. The node's clock is read while the node's checks run, so this costs no extra round trip."""
    facts: Facts = {}
    samples: list[tuple[float, float]] = []
    with Program(session, "preflight.probe", spec) as program, ExitStack() as at_end:
        deadline = program.clock.monotonic() + spec["deadline"] + 2 * SILENCE_SECONDS
        if hurry:
            at_end.callback(hurry.on_set(lambda: program.send({"op": "done"})))
        sent = time.time()  # python starts only now, so the first sample is the least certain one
        program.send({"op": "clock"})
        for frame in program.frames(silence=SILENCE_SECONDS, deadline=deadline, cancel=cancel):
            message = frame.decode(Probed) if frame.kind == MESSAGE else {}
            facts = message.get("facts") or facts
            if "clock" in message and len(samples) < CLOCK_SAMPLES:
                samples.append(sample(sent, message["clock"], time.time()))
                if len(samples) < CLOCK_SAMPLES:
                    sent = time.time()
                    program.send({"op": "clock"})
    facts.pop("before", None)  # only the head may add "before" and "speeds"
    facts.pop("speeds", None)
    if not facts:
        raise ProtocolError("it sent no facts", session.host.name)
    uncertainty, offset = min(samples, default=(inf, 0.0))
    if uncertainty < inf:
        facts["clock"] = {"offset": round(offset, 6), "uncertainty": round(uncertainty, 6)}
    return facts


def sample(sent: float, theirs: float, now: float) -> tuple[float, float]:
    """Returns (uncertainty, offset) of a round trip, in seconds. The offset is the node's clock minus the head's clock.
    The node's clock was read at the middle of the trip, give or take half the trip, which is the uncertainty. It is
    infinite if the head's clock was set back. sent, now: the head's clock before and after. theirs: the node's."""
    return (now - sent) / 2 if now >= sent else inf, theirs - (sent + now) / 2
