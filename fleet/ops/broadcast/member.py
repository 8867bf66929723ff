"""One member's conversation with remote/relay.py: frames in, control lines out, neither waiting for the other."""

from __future__ import annotations

import bisect
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.errors import FleetError
from fleet.model import Host
from fleet.ops.broadcast.manifest import Manifest
from fleet.transport.base import Cancel, Session
from fleet.transport.frames import MISFITS, Nonsense
from fleet.transport.program import Program

SILENCE_SECONDS = 20.0
Handle = Callable[[str, Mapping[str, Any]], None]


class Outbox:
    """Sends to one program from a thread of its own: a frozen node must not hold up what others are told."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._queue: queue.SimpleQueue[bytes | Mapping[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"outbox {program.host.name}", daemon=True).start()

    def put(self, message: bytes | Mapping[str, Any]) -> None:
        self._queue.put(message)

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            with contextlib.suppress(FleetError):
                if isinstance(message, bytes):
                    self._program.send_bytes(message)
                else:
                    self._program.send(message)


@dataclass
class Member:
    """A host that takes part, as the head sees it; the coordinator's lock guards all of it.

    state: "starting", "ready" (it has said what it needs), "shared", "receiving", "done" or "out".
    """

    host: Host
    dests: list[str]
    token: str
    state: str = "starting"
    outbox: Outbox | None = None
    greeted: bool = False
    need: Mapping[str, Any] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    received: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    error: FleetError | None = None
    cancel: Cancel = field(default_factory=Cancel)

    def tell(self, **message: Any) -> None:
        if self.outbox is not None:
            self.outbox.put(message)

    @property
    def addresses(self) -> list[list[Any]]:
        """Where its listener can be dialled, best first: [[address, port]]."""
        port = self.need["port"]
        found = [self.need["address"], self.host.data_address, self.host.address]
        return [[address, port] for address in dict.fromkeys(found) if address]

    def take_need(self, message: Mapping[str, Any], manifest: Manifest, dialled: bool) -> None:
        """What it says it lacks; dialled: others are to bring it. One of frames.MISFITS for what is no such message."""
        unsure = {int(k): str(v) for k, v in message["unsure"].items()}
        address, port, stages = message["address"], message["port"], message["stages"]
        rest = [*(0 <= i < len(manifest.files) for i in unsure), isinstance(address, str | None),
                len(stages) == len(self.dests), *(isinstance(stage, str) for stage in stages)]
        if dialled:
            rest.append(type(port) is int and 0 < port < 1 << 16)
        if not all(rest):
            raise ValueError("what it needs makes no sense")
        self.need = {
            "wants": _ranges(message["wants"], manifest.size), "bytes": count_of(message["bytes"]),
            "files": [range(a, b) for a, b in _ranges(message["files"], len(manifest.files))],
            "unsure": unsure, "address": address, "port": port, "stages": stages,
        }
        self.state = "ready"

    def settle(self, digests: Mapping[int, str], manifest: Manifest) -> None:
        """Decide about the files that it was unsure of: it holds those with the source's digest."""
        self.held = {i for i, digest in self.need["unsure"].items() if digests.get(i) == digest}
        held_bytes = sum(manifest.overlap(i, self.need["wants"]) for i in self.held)
        self.need = {**self.need, "bytes": self.need["bytes"] - held_bytes}

    def lacks(self, index: int) -> bool:
        """Whether that file is not in place there."""
        ranges = self.need["files"]
        at = bisect.bisect_right(ranges, index, key=lambda r: r.start) - 1
        return at >= 0 and index in ranges[at] and index not in self.held

    def lacking(self) -> Iterator[int]:
        """The files that are not in place there, in order."""
        return (i for part in self.need["files"] for i in part if i not in self.held)

    def fail(self, error: FleetError) -> None:
        self.state = "out"
        self.error = self.error or error


def count_of(value: Any) -> int:
    """A number of bytes that a node told; ValueError for what is none."""
    number = int(value)
    if not 0 <= number < 1 << 62:
        raise ValueError("no number of bytes")
    return number


def _ranges(pairs: Any, end: int) -> list[tuple[int, int]]:
    """[(from, to)] as a node gave them: in order, apart, between 0 and end."""
    found = [(int(a), int(b)) for a, b in pairs]
    flat = [0, *(n for pair in found for n in pair), end]
    if flat != sorted(flat):
        raise ValueError("ranges that are none")
    return found


def converse(
    session: Session, spec: Mapping[str, Any], cancel: Cancel, opened: Callable[[Outbox], None], handle: Handle
) -> None:
    """Run the program to its end, every J frame to `handle`. Raises FleetError; protocol errors are ConnectError."""
    with Program(session, "relay", spec) as program:
        outbox = Outbox(program)
        try:
            opened(outbox)
            for frame in program.frames(silence=SILENCE_SECONDS, cancel=cancel):
                if frame.kind == "J":
                    try:
                        handle(session.host.name, frame.json())
                    except MISFITS as error:
                        what = f"{type(error).__name__} in {frame.payload[:60]!r}"
                        raise Nonsense(what, session.host.name) from error
        finally:
            outbox.close()
