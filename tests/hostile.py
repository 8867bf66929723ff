"""A node that sends what no program of fleet sends."""

from __future__ import annotations

import json
import struct
from typing import Any

from fleet.model import Host
from fleet.protocol.frames import PREAMBLE as PREAMBLE
from fleet.transport.base import Cancel
from tests.in_process import FleetOver, fleet_over

HOST = Host("gpu1", "gpu1")
# what a node of a broadcast lacks: all of one file of 4 bytes
NEED = {
    "event": "need",
    "wants": [[0, 4]],
    "files": [[0, 1]],
    "unsure": {},
    "own": [],
    "bytes": 4,
    "address": "198.18.0.9",
    "port": 9,
}

# a delivery of code that changes nothing
MIRRORED: list[dict[str, Any]] = [
    {"event": "hello", "dest": "/d", "known": None},
    {"event": "need", "files": [], "blocks": []},
    {
        "event": "done",
        "sent": 0,
        "bytes": 0,
        "deleted": 0,
        "kept": [],
        "entries": 0,
        "changed": 0,
        "left": [],
        "replaced": 0,
        "overwritten": 0,
        "aside": [],
    },
]


class Node:
    """A Session, its Channel and a Transport at once: sends `output`, whatever comes in."""

    name = "hostile"
    host = HOST
    address = None

    def __init__(self, *output: bytes) -> None:
        self.output = output
        self.got = b""

    def connect(self, host: Host, cancel: Cancel) -> Any:
        return self

    def resolve(self, host: Host) -> None:
        return None

    def start(self, command: str) -> Any:
        channel = Node(*self.output)
        channel._left = list(self.output)  # type: ignore[attr-defined]
        return channel

    def send(self, data: bytes) -> None:
        self.got += data

    def send_eof(self) -> None: ...

    def recv(self, timeout: float) -> bytes:
        left: list[bytes] = self._left  # type: ignore[attr-defined]
        return left.pop(0) if left else b""

    def recv_stderr(self) -> bytes:
        return b""

    def wait(self, timeout: float) -> int:
        return 0

    def close(self) -> None: ...


def frame(kind: bytes, payload: bytes, stream: int = 0) -> bytes:
    return struct.pack(">cII", kind, stream, len(payload)) + payload


def sending(*messages: Any) -> Node:
    """Returns a node that sends these J frames and ends."""
    frames = (frame(b"J", json.dumps(message).encode()) for message in messages)
    return Node(PREAMBLE, *frames, frame(b"X", b'{"exit_status": 0}'))


def hostile(*messages: Any) -> FleetOver:
    """Returns the Fleet of one host, which sends these J frames, whatever program it starts."""
    return fleet_over(sending(*messages), HOST)


class Turns:
    """A transport: a host's connections go to its nodes, one after the other, and from then on to the last."""

    name = "turns"

    def __init__(self, **nodes: Node | list[Node]) -> None:
        self._nodes = {name: each if isinstance(each, list) else [each] for name, each in nodes.items()}

    def connect(self, host: Host, cancel: Cancel) -> Any:
        nodes = self._nodes[host.name]
        node = nodes.pop(0) if len(nodes) > 1 else nodes[0]
        node.host = host
        return node

    def resolve(self, host: Host) -> None:
        return None

    def close(self) -> None: ...


def taking_turns(**nodes: Node | list[Node]) -> FleetOver:
    """Returns the Fleet of these hosts."""
    return fleet_over(Turns(**nodes), *nodes)


def error_of(report: Any) -> Any:
    """Returns the error of the only host."""
    (result,) = report.results
    return result.error
