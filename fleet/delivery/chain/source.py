"""What the source tells of its files: digests, and which of them nobody can have because they change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fleet.delivery.chain.member import Member, Outbox
from fleet.protocol.messages.chain import Digests

CHANGED = "changed in the source while it was read"


class Source:
    """The head's own member. digests: file number -> sha256. changed: files given up."""

    def __init__(self) -> None:
        self.outbox: Outbox | None = None
        self.digests: dict[int, str] = {}
        self.changed: set[int] = set()
        self._asked: set[int] = set()

    def tell(self, **message: Any) -> None:
        if self.outbox is not None:
            self.outbox.put(message)

    def ask(self, files: Iterable[int]) -> set[int]:
        """Have these digests worked out; those that are not known yet."""
        missing = set(files) - self.digests.keys() - self.changed
        if fresh := sorted(missing - self._asked):
            self._asked.update(fresh)
            self.tell(op="digest", files=fresh)
        return missing

    def learn(self, message: Digests) -> dict[int, str]:
        """Digests that came in."""
        fresh = dict(message["files"])
        self.digests.update(fresh)
        return fresh

    def pass_on(self, member: Member, digests: Mapping[int, str]) -> None:
        """Give a member those digests that it needs."""
        wanted = [[i, digest] for i, digest in digests.items() if member.lacks(i)]
        if wanted:
            member.tell(op="digests", files=wanted)

    def warn(self, member: Member, files: Iterable[int]) -> None:
        """Tell a member what it will not get."""
        if failed := [[index, CHANGED] for index in files]:
            member.tell(op="fail", files=failed)
