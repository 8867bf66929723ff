"""Decides the order of sending in a broadcast, and holds the progress of each node. This module has no threads and no
clocks.

Every node that still needs bytes receives them from the nearest node before it that is not away; that node may be done.
Without such a node, it receives them from the source. judge.py decides which nodes are moved."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

SOURCE = ""  # no host has this name
HERE = "this machine"
RATE_SECONDS = 4.0  # time over which a rate is measured
SAMPLE_SECONDS = 0.05  # shortest time between two samples of a rate
LEAST_BYTES, LEAST_FILES = 1 << 16, 5  # less than that is no progress
MOVES = 3  # how often a hop may be moved to the end
# a hop crawls if its rate is below this fraction of the usual rate, and if that costs more than these seconds
CRAWL_FRACTION, CRAWL_COST_SECONDS = 0.25, 8.0


@dataclass(frozen=True)
class Order:
    """Orders `sender` to dial `receiver`, as link number `epoch`."""

    sender: str
    receiver: str
    epoch: int


@dataclass
class Hop:
    """Holds the progress of a node. position: offset in the stream of the first byte that it lacks. received: bytes so
    far; todo: bytes in all. away: the node is silent, and has no place in the chain. direct: the source serves it,
    outside the chain. samples: (time, bytes received) of the last RATE_SECONDS. counted, files: bytes received and
    files in place when `grown` was set. moves: how often it was moved to the end.

    Times are monotonic seconds. reported_at: the time of its last report; grown: of its last progress; linked: of its
    last change of sender; began: of its first bytes. best: its highest rate so far, in bytes a second."""

    name: str
    todo: int
    reported_at: float
    grown: float
    position: int = 0
    received: int = 0
    counted: int = 0
    files: int = 0
    linked: float = 0.0
    began: float | None = None
    best: float = 0.0
    done: bool = False
    away: bool = False
    direct: bool = False
    moves: int = 0
    samples: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def left(self) -> int:
        return max(0, self.todo - self.received)

    def rate(self) -> float | None:
        """Returns the bytes a second over the last RATE_SECONDS; None while that is not known yet."""
        if not self.samples or self.samples[-1][0] - self.samples[0][0] < RATE_SECONDS * 0.9:
            return None
        (t0, r0), (t1, r1) = self.samples[0], self.samples[-1]
        return (r1 - r0) / (t1 - t0)

    def usual(self) -> float:
        """Returns the node's highest rate in bytes a second; 0.0 if that is not known."""
        long_enough = self.began is not None and self.grown - self.began >= 0.5
        return max(self.best, self.received / (self.grown - (self.began or 0.0)) if long_enough else 0.0)

    def crawls(self, usual: float) -> bool:
        """Returns whether the node is far slower than `usual` bytes a second, and loses much time by that."""
        rate = self.rate()
        if self.done or not self.left or rate is None or not usual or rate >= usual * CRAWL_FRACTION:
            return False
        return self.left / max(rate, 1.0) - self.left / usual > CRAWL_COST_SECONDS


class Chain:
    """Holds the nodes in the order of sending. members: (name, bytes it lacks) of the nodes that lack something, in
    inventory order. limit: bytes a second of the source, if the user limits it.

    hops: in the order of the chain. links: by receiver. Methods change the order at once; orders() returns the links
    that must change after that.
    """

    def __init__(self, members: Sequence[tuple[str, int]], now: float, limit: int | None = None) -> None:
        self.hops = {name: Hop(name, todo, now, now) for name, todo in members}
        self.links: dict[str, Order] = {}
        self.now = now
        self._least = min(LEAST_BYTES, limit or LEAST_BYTES)
        self._sent: dict[str, tuple[int, float]] = {}
        self._epoch = 0

    # -- who is where --------------------------------------------------------------------------------------
    def orders(self) -> list[Order]:
        """Returns the new links that are needed so that every host that is not done has its sender."""
        changed, before = [], SOURCE
        for hop in self.hops.values():
            if hop.away:
                self.links.pop(hop.name, None)
                continue
            sender, link = SOURCE if hop.direct else before, self.links.get(hop.name)
            if not hop.done and (link is None or link.sender != sender):
                self._epoch += 1
                self.links[hop.name] = Order(sender, hop.name, self._epoch)
                changed.append(self.links[hop.name])
                # a low rate from the earlier sender does not count against this node
                hop.samples.clear()
                hop.linked = self.now
            if not hop.direct:
                before = hop.name
        return changed

    def sender_of(self, name: str) -> str:
        return self.links[name].sender if name in self.links else SOURCE

    def in_row(self) -> list[Hop]:
        return [hop for hop in self.hops.values() if not (hop.away or hop.direct)]

    def to_end(self, hop: Hop) -> bool:
        """Moves a hop to the end, so that no host depends on it. Returns False if the hop is there already, or was
        moved too often."""
        if hop.moves >= MOVES or hop is self.in_row()[-1]:
            return False
        hop.moves += 1
        self.hops[hop.name] = self.hops.pop(hop.name)
        return True

    def remove(self, name: str) -> None:
        """Removes a hop from the chain."""
        self.hops.pop(name, None)
        self.links.pop(name, None)

    # -- what is known of them -----------------------------------------------------------------------------
    def record_report(self, name: str, position: int, received: int, now: float, placed: int = 0) -> bool:
        """Records a hop's report on its progress. Returns whether the hop was away."""
        hop = self.hops.get(name)
        if hop is None:
            return False
        hop.reported_at, hop.position = now, position
        if received > hop.received:
            hop.began = hop.began or now
            hop.received = received
        if (
            received >= hop.counted + self._least
            or received >= hop.todo > hop.counted
            or placed >= hop.files + LEAST_FILES
        ):
            hop.grown, hop.counted, hop.files = now, received, placed
        if not hop.samples or now - hop.samples[-1][0] >= SAMPLE_SECONDS:
            hop.samples.append((now, received))
        while now - hop.samples[0][0] > RATE_SECONDS:
            hop.samples.popleft()
        hop.best = max(hop.best, hop.rate() or 0.0)
        was_away, hop.away = hop.away, False
        if was_away:
            self.hops[name] = self.hops.pop(name)
        return was_away

    def sent(self, sender: str, count: int, now: float) -> None:
        """Records that `sender` has sent `count` bytes so far."""
        if count > self._sent.get(sender, (-1, now))[0]:
            self._sent[sender] = count, now

    def takes(self, name: str, now: float, seconds: float) -> bool:
        """Returns whether a hop's sender has sent bytes in the last `seconds`."""
        return now - self._sent.get(self.sender_of(name), (0, 0.0))[1] < seconds

    def done(self, name: str) -> None:
        if name in self.hops:
            self.hops[name].done = True

    def forgive(self, seconds: float) -> None:
        """Moves all times on by `seconds`: the head itself was held up, and no host is to blame for that time."""
        for hop in self.hops.values():
            hop.reported_at, hop.grown, hop.linked = (
                hop.reported_at + seconds,
                hop.grown + seconds,
                hop.linked + seconds,
            )
            hop.began = None if hop.began is None else hop.began + seconds
            hop.samples.clear()
