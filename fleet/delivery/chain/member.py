"""Holds the state of one host of a chain, and the conversation with its node program
(node/delivery/chain/member.py)."""

from __future__ import annotations

import bisect
import contextlib
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fleet.answers.sync import Received
from fleet.background import unattended
from fleet.codec import from_json
from fleet.delivery.conversation import take_more
from fleet.delivery.manifest import Manifest
from fleet.errors import FleetError, HostFailed, ProtocolError
from fleet.model import Host
from fleet.protocol.frames import MESSAGE
from fleet.protocol.messages.chain import Done, Need, Ranges
from fleet.transport.base import Cancel, Session, Watchdog
from fleet.transport.program import Program

SILENCE_SECONDS = 20.0  # a host that sends no byte for so long is lost
HELLO_SECONDS = 60.0  # time for a lock, and for folders on slow disks
SLOWEST_DISK = 10 << 20  # bytes a second
LISTS: tuple[Literal["wants", "files"], ...] = ("wants", "files")  # these may be sent in parts
Handle = Callable[[str, Mapping[str, Any]], None]


class Outbox:
    """Sends to one program from a thread of its own: a frozen node must not hold up messages to others."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._queue: queue.SimpleQueue[bytes | Mapping[str, Any] | None] = queue.SimpleQueue()
        unattended(f"outbox {program.host.name}", self._run)

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
    """Holds what the head knows of a host in the chain. The coordinator's lock guards all of it.

    state: "starting", "ready" (it has reported what it needs), "shared", "receiving", "done" or "out". token: the
    secret from which the tokens of its links are made. greeted: it has sent its first message. parts: lists of which a
    part has arrived, by name. reached: the address to which SSH connected. need: what it lacks, see take_need().
    received, placed: bytes received and files in place. work: bytes that it may have to read on its disk. quiet:
    measures how long it has made no progress.
    """

    host: Host
    dests: list[str]
    token: str
    state: str = "starting"
    outbox: Outbox | None = None
    greeted: bool = False
    parts: dict[str, list[Any]] = field(default_factory=dict)
    need: Mapping[str, Any] = field(default_factory=dict)
    unsure: list[int] = field(default_factory=list)  # files whose digests it has requested from the head
    session: Session | None = None
    reached: str | None = None
    received: int = 0
    placed: int = 0
    work: int = 0
    quiet: Watchdog = field(default_factory=Watchdog)
    answer: Received = Received()
    error: FleetError | None = None
    cancel: Cancel = field(default_factory=Cancel)

    def send_order(self, **message: Any) -> None:
        if self.outbox is not None:
            self.outbox.put(message)

    @property
    def addresses(self) -> list[list[Any]]:
        """Returns where its listener can be dialled, best first: [[address, port]]. Only addresses that the inventory
        names or that SSH reached are used. So the host may choose one of its own, but cannot name another machine."""
        known = dict.fromkeys(filter(None, [self.host.data_address, self.reached, self.host.address]))
        own = [self.need["address"]] if self.need["address"] in known else []
        return [[address, self.need["port"]] for address in dict.fromkeys([*own, *known])]

    @property
    def own_addresses(self) -> list[list[Any]]:
        """Returns the addresses at which it can be dialled on its own machine: [[address, port]]."""
        own = [self.need["address"], self.need["port"]]
        return [own, *(pair for pair in self.addresses if pair != own)]

    @property
    def limit(self) -> float | None:
        """Returns the seconds within which it must report its next step; None if its peers' reports show that it
        works."""
        if self.outbox is None or self.unsure:
            return None
        if self.state == "starting" and not self.greeted:
            return HELLO_SECONDS
        # it compares all files with the manifest, or puts the last ones in place
        if self.state == "starting" or self.state == "receiving" and self.received >= self.need["bytes"]:
            return HELLO_SECONDS + self.work / SLOWEST_DISK
        return None

    def take(self, name: str, part: Sequence[Any], manifest: Manifest) -> list[Any]:
        """Adds a part to the list `name` (see LISTS) and returns the list. Raises ProtocolError if the list has more
        items than the manifest has entries."""
        known = self.parts.setdefault(name, [])
        take_more(known, part, len(manifest.entries), self.host.name)
        return known

    def take_need(self, message: Need, manifest: Manifest) -> None:
        """Records what the node lacks. Raises ProtocolError."""
        wants, files = (self.parts.get(name, []) + message[name] for name in LISTS)
        self.need = {
            **message,
            "wants": self._ranges(wants, manifest.size),
            "files": [range(a, b) for a, b in self._ranges(files, len(manifest.files))],
        }
        self.parts.clear()
        self.state = "ready"

    def _ranges(self, pairs: Ranges, end: int) -> Ranges:
        """Returns the node's [(from, to)]. Raises ProtocolError unless they are sorted, disjoint, not empty, below
        `end`."""
        flat = [0, *(n for pair in pairs for n in pair), end]
        if flat != sorted(flat) or any(a == b for a, b in pairs):
            raise ProtocolError("ranges that are none", self.host.name)
        return pairs

    def lacks(self, index: int) -> bool:
        """Returns whether the file with this number is not in place on the host."""
        ranges = self.need["files"]
        at = bisect.bisect_right(ranges, index, key=lambda r: r.start) - 1
        return at >= 0 and index in ranges[at]

    def lacking(self) -> Iterator[int]:
        """Returns the numbers of the files that are not in place on the host, in order."""
        return (i for part in self.need["files"] for i in part)

    def take_done(self, message: Done) -> None:
        self.state = "done"
        self.answer = from_json(Received, {key: message[key] for key in ("files", "bytes", "left", "aside")})
        if problems := message["problems"]:
            more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
            self.error = HostFailed(
                f"{problems[0][0]} {problems[0][1]}{more}",
                host=self.host.name,
                kind="digest",
                hint="it is not there under its name; run this again when the source is at rest",
            )
            self.answer = replace(self.answer, problems=[list(problem) for problem in problems])

    def fail(self, error: FleetError) -> None:
        self.state = "out"
        self.error = self.error or error


def converse(
    session: Session, spec: Mapping[str, Any], cancel: Cancel, opened: Callable[[Outbox], None], handle: Handle
) -> None:
    """Runs the member's program to its end and gives each of its messages to `handle`. opened: called with the
    program's outbox before the first message. Raises FleetError."""
    with Program(session, "delivery.chain.member", spec) as program:
        outbox = Outbox(program)
        try:
            opened(outbox)
            for frame in program.frames(silence=SILENCE_SECONDS, cancel=cancel):
                if frame.kind == MESSAGE:
                    handle(session.host.name, frame.json())
        finally:
            outbox.close()
