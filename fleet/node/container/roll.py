"""Decides which containers take part in a run, and gives them node ranks. Any machine may connect, so this module
checks each value of a hello message, in which a container describes itself."""

import hmac
import os
import re

from fleet.node.base.types import Any
from fleet.node.container.channel import bounded
from fleet.node.container.news import text
from fleet.node.container.server import Connection

MOST, MOST_RANKS = 1 << 20, 4097  # of nodes; of a container's ranks
LAST_CALL_SECONDS = 15.0  # an elastic run with enough nodes waits that long for another


class Member:
    """Describes a container, from its hello message. rank: the node rank that its variables set, None if they set none.
    each: its number of ranks. about: see Roll. node, first: its node rank and its first rank, once the run begins.
    token: identifies the container when it connects again. gone: when its connection was lost; None while that is open.
    over: its part has ended. spoke: when its ranks last wrote anything. Times are of this machine's monotonic clock."""

    def __init__(self, connection: Connection, hello: "dict[str, Any]") -> None:
        rank, name = hello.get("rank"), text(hello["host"])
        self.host = re.sub(r"[^A-Za-z0-9._-]", "_", name[:64]).lstrip(".-") or "container"
        self.rank = None if rank is None else bounded(rank, MOST)
        self.each, self.about = bounded(hello["each"], MOST_RANKS), hello["about"]
        self.connection, self.token = connection, os.urandom(16).hex()
        self.node: int | None = None
        self.first = 0
        self.gone: float | None = None
        self.over = False
        self.spoke = 0.0

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.each)

    @property
    def there(self) -> bool:
        return self.gone is None


class Roll:
    """Holds the containers of a run. about: {"job": the run's name on its platform, "least", "most": numbers of nodes},
    equal for all containers of the run. begun: the run has started; only an elastic run takes new nodes then."""

    def __init__(self, about: "dict[str, Any]") -> None:
        self.about, self.begun = about, False
        self.restarts = False  # is true if another attempt may follow
        self.members: list[Member] = []
        self.latest = 0.0  # when the last member joined

    @property
    def elastic(self) -> bool:
        return bool(self.about["least"] != self.about["most"])

    @property
    def world_size(self) -> int:
        return sum(it.each for it in self.members)

    def refusal(self, new: Member) -> "tuple[str, str] | None":
        """Returns (why a container may not take part, the next step), or None if it may. The texts reveal nothing about
        the run, as any machine may connect."""
        there = [it for it in self.members if it.there]
        if new.about != self.about:
            return "another run meets there", "one MASTER_ADDR and MASTER_PORT for each run, and the same variables"
        if new.rank is not None and any(it.rank == new.rank for it in there):
            return "two containers have node rank %d" % new.rank, "each container has a rank of its own, from 0 on"
        if len(there) >= self.about["most"]:
            return "all %d containers are there already" % self.about["most"], "is one of them started twice?"
        if self.begun and not self.elastic and not (self.restarts and self.predecessor(new)):
            return "the run has begun", "start all containers again, together"
        return None

    def predecessor(self, new: Member) -> "Member | None":
        """Returns the lost member with the same rank and name, or None if there is none."""
        return next((it for it in self.members if not it.there and it.rank == new.rank and it.host == new.host), None)

    def take_in(self, new: Member, now: float) -> None:
        """Adds a member, in the place of its predecessor if it has one."""
        old = self.predecessor(new)
        names = {it.host for it in self.members if it is not old}
        if new.host in names:
            numbered = ("%s-%d" % (new.host, number) for number in range(2, 3 + len(names)))
            new.host = next(name for name in numbered if name not in names)
        if old is not None:
            new.node, new.first = old.node, old.first
            self.members.remove(old)
        self.members.append(new)
        self.latest = now

    def of(self, token: object) -> "Member | None":
        """Returns the member with this token, or None if there is none."""
        text = token if isinstance(token, str) else ""
        return next((it for it in self.members if hmac.compare_digest(it.token.encode(), text.encode())), None)

    def may_begin(self, now: float) -> bool:
        """Returns whether all nodes are there, or whether enough are, and none has joined for LAST_CALL_SECONDS."""
        count = sum(it.there for it in self.members)
        late = now > self.latest + LAST_CALL_SECONDS
        return count == self.about["most"] or bool(count >= self.about["least"] and late)

    def number(self, begun: bool) -> None:
        """Numbers nodes and ranks. A node has the rank that its variables set. The other nodes take the free numbers:
        the one on this machine first, then the rest by name. begun: members that have numbers keep them, and the ranks
        of new members come after theirs."""
        new = [it for it in self.members if it.node is None or not begun]
        kept = [it for it in self.members if it not in new]
        taken = {it.rank for it in self.members if it.rank is not None}.union(it.node for it in kept)
        free = (number for number in range(MOST) if number not in taken)
        for it in sorted(new, key=lambda it: (it.connection.address != it.connection.own, it.host)):
            it.node = it.rank if it.rank is not None else next(free)
        first = max((it.first + it.each for it in kept), default=0)
        for it in sorted(new, key=lambda it: it.node or 0):
            it.first, first = first, first + it.each
        self.members.sort(key=lambda it: it.node or 0)
