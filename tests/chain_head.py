"""The head of a pipelined broadcast without its nodes: messages of members in, messages to them out."""

from __future__ import annotations

from typing import Any

from fleet.delivery.chain.handlers import Head
from fleet.delivery.chain.member import Member
from fleet.delivery.manifest import Manifest
from fleet.errors import FleetError
from fleet.model import Host

MANIFEST = Manifest(((0, "x", "f", 0o644, 4, 0, ""), (0, "y", "f", 0o644, 4, 0, "")))
NEED = {
    "event": "need",
    "wants": [[0, 8]],
    "files": [[0, 2]],
    "bytes": 8,
    "address": "198.18.0.9",
    "port": 9,
}
AT = {"event": "at", "position": 4, "received": 4, "placed": 1, "sent": 0}
DONE = {"event": "done", "files": 2, "bytes": 8, "problems": [], "left": [], "aside": []}


class _Outbox:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def put(self, message: Any) -> None:
        self.messages.append(message)


class _Files:
    """A source that knows all digests at once, and serves no node."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {0: "00", 1: "00"}
        self.changed: set[int] = set()
        self.sent = 0
        self.name = "this machine"
        self.served: list[tuple[str, int]] = []

    def ask(self, files: Any) -> set[int]:
        return set(files) - self.digests.keys()

    def serve(self, member: Member, epoch: int) -> None:
        self.served.append((member.host.name, epoch))

    def end(self) -> None: ...


class ChainHead:
    """The coordinator of these members, each of them connected. served: (member, epoch) of each start of the source.
    through: the members that hold a lock no more."""

    def __init__(self, *names: str) -> None:
        self.members = {name: member(name) for name in names}
        self.outboxes = {name: _Outbox() for name in names}
        files = _Files()
        self.served = files.served
        self.through: list[str] = []
        self._head = Head(
            list(self.members.values()),
            MANIFEST,
            lambda event: None,
            files,  # type: ignore[arg-type]
            locked=self.through.append,
        )
        for name, outbox in self.outboxes.items():
            self._head.opened(self.members[name], outbox)  # type: ignore[arg-type]

    def receive(self, name: str, *messages: Any) -> None:
        for message in messages:
            self._head.handle(name, message)

    def leave(self, name: str, error: FleetError | None = None) -> None:
        self._head.left(name, error)

    def tick(self) -> None:
        self._head.tick()

    @property
    def over(self) -> bool:
        return self._head.over.is_set()

    def sent(self, name: str, op: str) -> list[dict[str, Any]]:
        """Returns the messages of that kind to a member, in their order."""
        messages = self.outboxes[name].messages
        return [message for message in messages if isinstance(message, dict) and message["op"] == op]


def member(name: str, data_address: str | None = None, reached: str | None = None) -> Member:
    return Member(Host(name, name, data_address=data_address), ["/d"], "secret", reached=reached)
