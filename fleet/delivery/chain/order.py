"""Who sends to whom in a broadcast: the order, its links and what is known of each node, without threads or clocks.

The order is the inventory's at first. Every node that still needs something receives from the nearest one before it
that is there, done or not; else from the source. A node may go to the end, where nobody waits for it; one that is
silent is away, which costs it its place until it speaks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

RATE_SECONDS = 4.0
GAP_DECAY = 0.9
LEAST_BYTES, LEAST_FILES = 1 << 16, 5
SAMPLE_SECONDS = 0.05
SOURCE = ""  # no host has this name


@dataclass(frozen=True)
class Order:
    """`sender` is to dial `receiver` as link number `epoch`."""

    sender: str
    receiver: str
    epoch: int


@dataclass
class Hop:
    """What is known of a node. position: the first byte it lacks. received: bytes so far; todo: bytes in all;
    counted, files: bytes and files in place when `grown` was set.

    Times are monotonic seconds. heard: its last word; gap: how far apart its words lately were; grown: when bytes last
    came; linked: when it last got another sender. failures: links to it that broke since then. moves: how
    often it was sent to the end. firsts: how often to the front. complaints: about its senders. suspect: what it
    sends on is not to be relied on. usual: who had which rate when it crawled.
    """

    name: str
    todo: int
    heard: float
    grown: float
    position: int = 0
    received: int = 0
    counted: int = 0
    files: int = 0
    gap: float = 0.0
    linked: float = 0.0
    began: float | None = None
    done: bool = False
    failures: int = 0
    moves: int = 0
    firsts: int = 0
    usual: tuple[str, float] | None = None
    complaints: int = 0
    suspect: bool = False
    samples: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def left(self) -> int:
        return max(0, self.todo - self.received)

    def rate(self) -> float | None:
        """Bytes a second over the last RATE_SECONDS; None while that is not known yet."""
        if not self.samples or self.samples[-1][0] - self.samples[0][0] < RATE_SECONDS * 0.9:
            return None
        (t0, r0), (t1, r1) = self.samples[0], self.samples[-1]
        return (r1 - r0) / (t1 - t0)

    def average(self) -> float | None:
        """Bytes a second from its first byte to its last one so far."""
        if self.began is None or self.grown - self.began < 0.5:
            return None
        return self.received / (self.grown - self.began)


class Chain:
    """members: (name, bytes it lacks) of the nodes that lack something, in inventory order.

    hops: those that are there, in the order of the chain. away: those that are silent.
    """

    def __init__(self, members: Sequence[tuple[str, int]], now: float) -> None:
        self.hops = {name: Hop(name, todo, now, now) for name, todo in members}
        self.away: dict[str, Hop] = {}
        self.links: dict[str, Order] = {}
        self.now = now
        self._sent: dict[str, tuple[int, float]] = {}
        self._epoch = 0
        self._before = dict(zip(self.hops, [SOURCE, *self.hops], strict=False))

    # -- who is where --------------------------------------------------------------------------------------
    def sender_of(self, name: str) -> str:
        """The nearest hop before `name`, or the source."""
        return self._before.get(name, SOURCE)

    def before(self, hop: Hop) -> Hop | None:
        """The hop that sends to this one; None: the source."""
        return self.hops.get(self.sender_of(hop.name))

    def is_last(self, name: str) -> bool:
        """Whether nobody depends on it, but those on whom nobody does either."""
        *_, last = ["", *(one.name for one in self.hops.values() if not one.suspect or one.name == name)]
        return last == name

    # -- what is known of them -----------------------------------------------------------------------------
    def heard(self, name: str, position: int, received: int, now: float, placed: int = 0) -> None:
        """A hop's word on how far it is, whether it is there or away."""
        hop = self.hops.get(name) or self.away.get(name)
        if hop is None:
            return
        hop.gap = max(now - hop.heard, hop.gap * GAP_DECAY)
        hop.heard = now
        if received > hop.received:
            hop.began = hop.began or now
            hop.received = received
        # a trickle is no progress
        if (
            received >= hop.counted + LEAST_BYTES
            or received >= hop.todo > hop.counted
            or placed >= hop.files + LEAST_FILES
        ):
            hop.grown, hop.counted, hop.files = now, received, placed
        hop.position = position
        if not hop.samples or now - hop.samples[-1][0] >= SAMPLE_SECONDS:
            hop.samples.append((now, received))
        while now - hop.samples[0][0] > RATE_SECONDS:
            hop.samples.popleft()

    def sent(self, sender: str, count: int, now: float) -> None:
        """`sender` has got rid of `count` bytes so far."""
        if count > self._sent.get(sender, (-1, now))[0]:
            self._sent[sender] = count, now

    def sent_at(self, sender: str) -> float:
        """When `sender` last got rid of something; 0.0 for never."""
        return self._sent.get(sender, (0, 0.0))[1]

    def forgive(self, seconds: float) -> None:
        """This machine was held up for so long: nobody is to blame for that time."""
        for hop in [*self.hops.values(), *self.away.values()]:
            hop.heard, hop.grown, hop.linked = hop.heard + seconds, hop.grown + seconds, hop.linked + seconds
            hop.began = None if hop.began is None else hop.began + seconds
            hop.samples.clear()

    def done(self, name: str) -> None:
        hop = self.hops.get(name) or self.away.get(name)
        if hop is not None:
            hop.done = True

    def behind(self, name: str) -> float:
        """Seconds that a hop is behind its sender, at the sender's speed; 0.0 where that is not known."""
        hop = self.hops[name]
        sender = self.before(hop)
        usual = sender.average() if sender else None
        return max(0, sender.position - hop.position) / usual if sender and usual else 0.0

    # -- changes; each returns the orders that make it so ----------------------------------------------------
    def orders(self) -> list[Order]:
        """What is to change so that everyone in need has a sender."""
        self._before = dict(zip(self.hops, [SOURCE, *self.hops], strict=False))
        changed = []
        for name, sender in self._before.items():
            hop, current = self.hops[name], self.links.get(sender)
            if not hop.done and (current is None or current.receiver != name):
                changed.append(self._link(sender, hop))
        return changed

    def _link(self, sender: str, hop: Hop) -> Order:
        self._epoch += 1
        order = self.links[sender] = Order(sender, hop.name, self._epoch)
        # how it fared behind another sender does not count against it
        hop.samples.clear()
        hop.linked = self.now
        return order

    def remove(self, name: str) -> list[Order]:
        """Take a hop out for good."""
        self.away.pop(name, None)
        if self.hops.pop(name, None) is None:
            return []
        self.links.pop(name, None)
        return self.orders()

    def set_aside(self, name: str) -> list[Order]:
        """Go on without a hop until it speaks again."""
        self.away[name] = self.hops[name]
        self.hops.pop(name)
        self.links.pop(name, None)
        return self.orders()

    def rejoin(self, name: str) -> list[Order]:
        """One that was away is there again: at the end, where nobody depends on it."""
        hop = self._append(self.away.pop(name))
        hop.gap = hop.failures = 0
        hop.linked = self.now
        return self.orders()

    def to_end(self, name: str) -> list[Order]:
        """Have nobody depend on a hop. The caller counts its moves."""
        hop = self._append(self.hops.pop(name))
        self.links.pop(name, None)
        hop.failures = 0
        return self.orders()

    def to_front(self, name: str) -> list[Order]:
        """Have the source itself send to a hop."""
        hop = self.hops.pop(name)
        self.hops = {name: hop, **self.hops}
        self.links.pop(name, None)
        hop.failures = 0
        return self.orders()

    def _append(self, hop: Hop) -> Hop:
        """Last, but for those that nobody is to depend on."""
        suspects = {} if hop.suspect else {name: one for name, one in self.hops.items() if one.suspect}
        good = {name: one for name, one in self.hops.items() if name not in suspects}
        self.hops = {**good, hop.name: hop, **suspects}
        return hop

    def redial(self, sender: str) -> list[Order]:
        """The same link again, as a new one."""
        return [self._link(sender, self.hops[self.links[sender].receiver])]

    def broke(self, sender: str, epoch: int) -> Hop | None:
        """The hop that a broken link led to; None when that link is history, or nobody waits for it."""
        order = self.links.get(sender)
        if order is None or order.epoch != epoch:
            return None
        if order.receiver not in self.hops or self.sender_of(order.receiver) != sender:
            # whoever is away gets a new one when it speaks again; who has another sender needs none
            self.links.pop(sender)
            return None
        return self.hops[order.receiver]
