"""Who sends to whom, and who is cut out: the decisions of a broadcast, without its threads, clocks or connections.

The order is the inventory's. Every node that still needs something receives from the nearest one before it that is
there, done or not; else from the source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

SILENCE_SECONDS = 2.0  # of a node that takes no bytes either
DEAF_SECONDS = 8.0  # of one that does: its link may be too full for its words
STALL_SECONDS = 15.0
REDIALS = 3
CRAWL_SECONDS = 4.0
CRAWL_FRACTION = 0.25
CRAWL_COST_SECONDS = 8.0
LAG_BYTES = 8 << 20
CRAWLERS_A_SENDER = 2  # when a third one crawls behind the same node, it is that node's own way out that is slow
SOURCE = ""  # no host has this name


@dataclass(frozen=True)
class Order:
    """`sender` is to dial `receiver` (None: nobody) as link number `epoch`."""

    sender: str
    receiver: str | None
    epoch: int


@dataclass(frozen=True)
class Cut:
    """`name` is out. lost: seconds since it last did something. kind: a stable word, as in FleetError."""

    name: str
    reason: str
    hint: str | None
    kind: str


@dataclass
class Member:
    """What is known of a node. position: the first byte it lacks. received: bytes so far; todo: bytes in all."""

    name: str
    todo: int
    heard: float
    position: int = 0
    received: int = 0
    grown: float = 0.0
    linked: float = 0.0
    began: float | None = None
    done: bool = False
    redials: int = 0
    crawlers: int = 0
    samples: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def left(self) -> int:
        return max(0, self.todo - self.received)

    def rate(self) -> float | None:
        """Bytes a second over the last CRAWL_SECONDS; None while that is not known yet."""
        if not self.samples or self.samples[-1][0] - self.samples[0][0] < CRAWL_SECONDS * 0.9:
            return None
        (t0, r0), (t1, r1) = self.samples[0], self.samples[-1]
        return (r1 - r0) / (t1 - t0)

    def average(self) -> float | None:
        """Bytes a second from its first byte to its last one so far."""
        if self.began is None or self.grown - self.began < 0.5:
            return None
        return self.received / (self.grown - self.began)


class Chain:
    """members: (name, bytes it lacks) of the nodes that lack something, in inventory order. Times are monotonic."""

    def __init__(self, members: Sequence[tuple[str, int]], now: float) -> None:
        self.members = {name: Member(name, todo, now, grown=now) for name, todo in members}
        self.links: dict[str, Order] = {}
        self._sent: dict[str, tuple[int, float]] = {}
        self._epoch = 0
        self._ticked = now

    def sender_of(self, name: str) -> str:
        """The nearest member before `name`, or the source."""
        before = SOURCE
        for other in self.members:
            if other == name:
                return before
            before = other
        return SOURCE

    def orders(self) -> list[Order]:
        """What is to change so that everyone in need has a sender."""
        changed = []
        for name, member in self.members.items():
            sender = self.sender_of(name)
            current = self.links.get(sender)
            if not member.done and (current is None or current.receiver != name):
                changed.append(self._link(sender, name))
        return changed

    def _link(self, sender: str, receiver: str | None) -> Order:
        self._epoch += 1
        order = self.links[sender] = Order(sender, receiver, self._epoch)
        if receiver in self.members:
            # how it fared behind another sender does not count against it
            self.members[receiver].samples.clear()
            self.members[receiver].linked = self._ticked
        return order

    def heard(self, name: str, position: int, received: int, now: float) -> None:
        member = self.members.get(name)
        if member is None:
            return
        member.heard = now
        if received > member.received:
            member.began = member.began or now
            member.grown, member.received = now, received
        member.position = position
        member.samples.append((now, received))
        while now - member.samples[0][0] > CRAWL_SECONDS:
            member.samples.popleft()

    def sent(self, sender: str, count: int, now: float) -> None:
        """`sender` has got rid of `count` bytes so far."""
        if count > self._sent.get(sender, (-1, now))[0]:
            self._sent[sender] = count, now

    def done(self, name: str) -> None:
        if name in self.members:
            self.members[name].done = True

    def remove(self, name: str) -> list[Order]:
        """Cut a member out; the orders that close the gap."""
        if self.members.pop(name, None) is None:
            return []
        self.links.pop(name, None)
        return self.orders()

    def behind(self, name: str) -> float:
        """Seconds that a member is behind its sender, at the sender's speed; 0.0 where that is not known."""
        member, sender = self.members[name], self.members.get(self.sender_of(name))
        usual = sender.average() if sender else None
        return max(0, sender.position - member.position) / usual if sender and usual else 0.0

    def broken(self, sender: str, epoch: int, connected: bool, why: str) -> Order | Cut | None:
        """A link failed: dial again, or give the receiver up. None when that link is history already."""
        order = self.links.get(sender)
        if order is None or order.epoch != epoch or order.receiver not in self.members:
            return None
        member = self.members[order.receiver]
        member.redials += 1
        if member.redials <= (REDIALS if connected else 1):
            return self._link(sender, order.receiver)
        who = f"host {sender}" if sender else "this machine"
        if connected:
            return Cut(member.name, f"the link from {who} broke {member.redials} times: {why}",
                       "look at the network between the two", "lost")
        return Cut(member.name, f"{who} cannot reach it: {why}",
                   "a firewall? open the nodes' ports to each other, or use --via rsync", "unreachable")

    def tick(self, now: float) -> list[Cut]:
        """Whom to cut out now. Called several times a second."""
        late, self._ticked = now - self._ticked, now
        if late > 1.0:
            # it is this machine that was held up: nobody's silence counts meanwhile
            for member in self.members.values():
                member.heard += late
        cuts = [cut for member in self.members.values() if (cut := self._judge(member, now))]
        silent = [cut for cut in cuts if cut.kind == "lost"]
        # with all of them silent at once, it is the head that is cut off: the connections themselves will tell
        if len(silent) > 1 and len(silent) == len(self.members):
            return []
        if not silent and cuts and cuts[0].kind == "slow":
            self.members[self.sender_of(cuts[0].name)].crawlers += 1
        # one at a time: what its successors suffer from is often the same
        return silent or cuts[:1]

    def _judge(self, member: Member, now: float) -> Cut | None:
        silence = now - member.heard
        taken = now - self._sent.get(self.sender_of(member.name), (0, 0.0))[1]
        if silence > (DEAF_SECONDS if taken < SILENCE_SECONDS / 2 else SILENCE_SECONDS):
            return Cut(member.name, f"frozen or cut off: no sign of life for {silence:.1f} s",
                       "look at the host and at its link, then run this again", "lost")
        if member.done or not member.left:
            return None
        sender = self.members.get(self.sender_of(member.name))
        there = sender is None or sender.position > member.position
        idle = now - max(member.grown, member.linked)
        if there and idle > STALL_SECONDS and (sender is None or not sender.left
                                                             or now - sender.grown < 1.0):
            return Cut(member.name, f"it has received nothing for {idle:.0f} s",
                       "look at its disk and at its link", "stalled")
        rate, usual = member.rate(), sender.average() if sender else None
        if rate is None or not usual or sender is None or sender.crawlers >= CRAWLERS_A_SENDER:
            return None
        if sender.position - member.position < LAG_BYTES:
            return None
        cost = member.left / max(rate, 1.0) - member.left / usual
        if rate < usual * CRAWL_FRACTION and cost > CRAWL_COST_SECONDS:
            return Cut(member.name, f"it crawls: {rate / 1e6:.1f} MB/s, where host {sender.name} before it has "
                       f"{usual / 1e6:.1f} MB/s", "look at its link and at its disk, then run this again", "slow")
        return None


class Losses:
    """The time that a cut costs those behind it: from their last byte before it to their first one after it."""

    def __init__(self) -> None:
        self.known: list[dict[str, str | float]] = []
        self._open: dict[str, tuple[str, float, int]] = {}

    def begin(self, gone: str, behind: Member) -> None:
        self._open[behind.name] = gone, behind.grown, behind.received

    def end(self, chain: Chain, name: str, now: float) -> tuple[str, float] | None:
        """(who went out, seconds) once `name` receives again; said once."""
        member = chain.members.get(name)
        if member is None or name not in self._open or member.received <= self._open[name][2]:
            return None
        gone, since, _received = self._open.pop(name)
        seconds = round(max(now - since, chain.behind(name)), 1)
        self.known.append({"host": gone, "behind": name, "lost_seconds": seconds})
        return gone, seconds
