"""Who sends to whom in a broadcast, and who is in the way: without threads, without clocks.

Every node that still needs something receives from the nearest one before it that is there, done or not; else from the
source. ONE rule for all that may go wrong between two, since from here nobody knows whose fault it is, and either may
lie: the receiver goes to the end, where it gets another sender and nobody waits for it. Where it is wrong with that
one, too, the source itself serves it, beside the chain. Where that is no better, it is given up. A sender behind which
two fared badly goes to the end itself. One that is silent is away, which costs it its place until it speaks again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

SOURCE = ""  # no host has this name
RATE_SECONDS = 4.0
SAMPLE_SECONDS = 0.05
LEAST_BYTES, LEAST_FILES = 1 << 16, 5  # a trickle is no progress
SILENCE_SECONDS = 2.0  # of a node that takes no bytes either
SILENCE_LIMIT = 8.0  # also of one that takes bytes: its link may be too full for its words
DEATH_SECONDS = 12.0
STALL_SECONDS = 15.0
CRAWL_FRACTION, CRAWL_COST_SECONDS = 0.25, 8.0
LAG_BYTES = 8 << 20
TRIAL_LEFT_SECONDS = 20.0
MOVES = 3
UNREACHED = 3
DOUBT_SECONDS = 0.5
# how often the same link is tried again first
TRIES = {"lost": 3, "unreachable": 1, "corrupt": 2}

Action = Literal["aside", "last", "direct", "out"]
# of a sender behind which two hosts fared badly
WAY_OUT = {
    "unreachable": "it reaches no other host",
    "slow": "its way out is slow: the hosts behind it crawl",
    "stalled": "what it sends does not arrive",
    "lost": "its links to other hosts break",
    "protocol": "it says of several hosts that they do not keep to fleet's protocol",
    "corrupt": "what others got from it is not in the source",
}
HINTS = {
    "unreachable": "a firewall? open the nodes' ports to each other, or use --via rsync",
    "slow": "look at its link and at its disk, then run this again",
    "stalled": "look at its disk and at its link",
    "lost": "look at the network between the two",
    "protocol": "something there breaks fleet's programs: look at the host",
    "corrupt": "look at the host's memory and disk; if it is so on all of them: at the source",
    "dead": "look at the host and at its link, then run this again",
}


@dataclass(frozen=True)
class Order:
    """`sender` is to dial `receiver` as link number `epoch`."""

    sender: str
    receiver: str
    epoch: int


@dataclass(frozen=True)
class Verdict:
    """What became of a node. aside: the others go on without it; last: it goes to the end; direct: the source serves
    it; out: it is given up. kind: as in FleetError; "trial" for a move that blames nobody."""

    name: str
    action: Action
    reason: str
    kind: str = "lost"


@dataclass
class Hop:
    """What is known of a node. position: the first byte it lacks. received: bytes so far; todo: bytes in all.
    counted, files: bytes and files in place when `grown` was set.

    Times are monotonic seconds. heard: its last word; grown: when bytes last came; linked: when it last got another
    sender. best: the most bytes a second that it ever received.
    """

    name: str
    todo: int
    heard: float
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
        """Bytes a second over the last RATE_SECONDS; None while that is not known yet."""
        if not self.samples or self.samples[-1][0] - self.samples[0][0] < RATE_SECONDS * 0.9:
            return None
        (t0, r0), (t1, r1) = self.samples[0], self.samples[-1]
        return (r1 - r0) / (t1 - t0)

    def usual(self) -> float:
        """Bytes a second in its best time; 0.0 where that is not known."""
        long_enough = self.began is not None and self.grown - self.began >= 0.5
        return max(self.best, self.received / (self.grown - (self.began or 0.0)) if long_enough else 0.0)

    def crawls(self, usual: float) -> bool:
        rate = self.rate()
        if self.done or not self.left or rate is None or not usual or rate >= usual * CRAWL_FRACTION:
            return False
        return self.left / max(rate, 1.0) - self.left / usual > CRAWL_COST_SECONDS


class Chain:
    """members: (name, bytes it lacks) of the nodes that lack something, in inventory order. every: seconds between
    their words. limit: bytes a second of the source, where that is limited by wish.

    hops: in the order of the chain. links: by receiver. Calls change the chain at once; orders() has what follows.
    """

    def __init__(
        self, members: Sequence[tuple[str, int]], now: float, every: float = 0.2, limit: int | None = None
    ) -> None:
        self.hops = {name: Hop(name, todo, now, now) for name, todo in members}
        self.links: dict[str, Order] = {}
        self.now = now
        self._silence = max(SILENCE_SECONDS, 4 * every)
        self._least = min(LEAST_BYTES, limit or LEAST_BYTES)
        self._tried = limit is not None
        self._first: tuple[str, float] | None = None  # what another host reached straight from the source
        self._sent: dict[str, tuple[int, float]] = {}
        self._epoch = 0
        self._tries: Counter[tuple[str, str, str]] = Counter()
        self._faults: dict[tuple[str, str], None] = {}  # (sender, receiver) between whom something was wrong
        self._complaints: set[tuple[str, int]] = set()
        self._doubts: list[tuple[float, str, int, int]] = []

    # -- who is where --------------------------------------------------------------------------------------
    def orders(self) -> list[Order]:
        """What is to change so that everyone in need has a sender."""
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
                # how it fared behind another sender does not count against it
                hop.samples.clear()
                hop.linked = self.now
            if not hop.direct:
                before = hop.name
        return changed

    def sender_of(self, name: str) -> str:
        return self.links[name].sender if name in self.links else SOURCE

    def _in_row(self) -> list[Hop]:
        return [hop for hop in self.hops.values() if not (hop.away or hop.direct)]

    def _to_end(self, hop: Hop) -> bool:
        """Have nobody depend on a hop; False where nobody does, or it was moved too often."""
        if hop.moves >= MOVES or hop is self._in_row()[-1]:
            return False
        hop.moves += 1
        self.hops[hop.name] = self.hops.pop(hop.name)
        return True

    def remove(self, name: str) -> None:
        """Take a hop out for good."""
        self.hops.pop(name, None)
        self.links.pop(name, None)

    # -- what is known of them -----------------------------------------------------------------------------
    def heard(self, name: str, position: int, received: int, now: float, placed: int = 0) -> bool:
        """A hop's word on how far it is; whether it was away."""
        hop = self.hops.get(name)
        if hop is None:
            return False
        hop.heard, hop.position = now, position
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
        """`sender` has got rid of `count` bytes so far."""
        if count > self._sent.get(sender, (-1, now))[0]:
            self._sent[sender] = count, now

    def forgive(self, seconds: float) -> None:
        """This machine was held up for so long: nobody is to blame for that time."""
        for hop in self.hops.values():
            hop.heard, hop.grown, hop.linked = hop.heard + seconds, hop.grown + seconds, hop.linked + seconds
            hop.began = None if hop.began is None else hop.began + seconds
            hop.samples.clear()

    # -- whose fault it is ---------------------------------------------------------------------------------
    def broke(self, sender: str, epoch: int, kind: str, why: str) -> list[Verdict]:
        """A link failed, its sender says: it is dialled again, or its ends part. Nothing where that is history."""
        link = next((one for one in self.links.values() if (one.sender, one.epoch) == (sender, epoch)), None)
        if link is None:
            return []
        hop = self.hops[link.receiver]
        del self.links[hop.name]
        if hop.done:
            return []
        self._tries[sender, hop.name, kind] += 1
        if self._tries[sender, hop.name, kind] <= TRIES.get(kind, 0):
            return []
        if kind == "unreachable":
            senders = dict.fromkeys([source for source, receiver in self._faults if receiver == hop.name] + [sender])
            return self._fault(sender, hop, f"{' and '.join(map(_named, senders))} cannot reach it: {why}", kind)
        if kind == "lost":
            return self._fault(sender, hop, f"the link from {_named(sender)} broke again and again: {why}", kind)
        return self._fault(sender, hop, f"it does not keep to fleet's protocol: {why}", kind)

    def corrupt(self, name: str, epoch: int, file: int) -> None:
        """A hop got by link `epoch` what is not in the source. It waits for what tick() says: it may be that its sender
        only passed that on."""
        self._doubts.append((self.now, name, epoch, file))
        self._complaints.add((name, file))

    def _corrupt(self, now: float) -> list[Verdict]:
        ripe = [doubt for doubt in self._doubts if now - doubt[0] >= DOUBT_SECONDS]
        del self._doubts[: len(ripe)]
        verdicts = []
        for _, name, epoch, file in ripe:
            link = self.links.get(name)
            if link is None or link.epoch != epoch:
                continue  # it gets another one anyway
            del self.links[name]
            self._tries[link.sender, name, "corrupt"] += 1
            excused = link.sender == SOURCE or (link.sender, file) in self._complaints
            if not excused or self._tries[link.sender, name, "corrupt"] > TRIES["corrupt"]:
                reason = "a file did not arrive as it was sent (changed while it was read?)"
                verdicts += self._fault(link.sender, self.hops[name], reason, "corrupt")
        return verdicts

    def _fault(self, sender: str, hop: Hop, reason: str, kind: str) -> list[Verdict]:
        """Something is wrong between two."""
        again = (sender, hop.name) in self._faults
        self._faults[sender, hop.name] = None
        senders = {one for one, receiver in self._faults if receiver == hop.name}
        receivers = {receiver for one, receiver in self._faults if one == sender}
        blamed = self.hops.get(sender)
        if blamed is None and kind == "unreachable" and len(receivers) > UNREACHED:
            reason = f"this machine cannot reach it, nor any other: {reason.partition(': ')[2]}"
            return [Verdict(name, "out", reason, kind) for name, one in self.hops.items() if not one.done]
        if blamed is not None and len(receivers) > 1 and self._to_end(blamed):
            return [Verdict(sender, "last", WAY_OUT[kind], kind)]
        if len(senders) == 1 and not (again or hop.direct) and self._to_end(hop):
            return [Verdict(hop.name, "last", reason, kind)]
        if SOURCE in senders:
            return [Verdict(hop.name, "out", reason, kind)]
        hop.direct = True
        return [Verdict(hop.name, "direct", reason, kind)]

    # -- silence and speed ---------------------------------------------------------------------------------
    def tick(self, now: float) -> list[Verdict]:
        """What is to be done now. Called several times a second."""
        late, self.now = now - self.now, now
        if late > 1.0:
            self.forgive(late)
        if verdicts := self._silent(now) or self._corrupt(now):
            return verdicts
        # one at a time: what its successors suffer from is often the same
        for hop in [hop for hop in self.hops.values() if not (hop.done or hop.away)]:
            if verdicts := self._stalled(hop, now) or self._slow(hop):
                return verdicts
        return self._trial()

    def _silent(self, now: float) -> list[Verdict]:
        there = [hop for hop in self.hops.values() if not hop.away]
        silent = [hop for hop in there if now - hop.heard > self._patience(hop, now)]
        # with all of them silent at once, it is the head that is cut off: the connections themselves will tell
        if len(silent) == len(there) > 1:
            return []
        for hop in silent:
            hop.away = True
        verdicts = [Verdict(hop.name, "aside", f"no sign of life for {now - hop.heard:.1f} s") for hop in silent]
        for hop in self.hops.values():
            if hop.away and not hop.done and now - hop.heard > max(DEATH_SECONDS, 2 * self._silence):
                reason = f"frozen or cut off: no sign of life for {now - hop.heard:.1f} s"
                verdicts.append(Verdict(hop.name, "out", reason, "dead"))
        return verdicts

    def _patience(self, hop: Hop, now: float) -> float:
        takes = now - self._sent.get(self.sender_of(hop.name), (0, 0.0))[1] < self._silence / 2
        return max(SILENCE_LIMIT, self._silence) if takes else self._silence

    def _stalled(self, hop: Hop, now: float) -> list[Verdict]:
        name = self.sender_of(hop.name)
        sender = self.hops.get(name)
        if not hop.left or (sender is not None and sender.position <= hop.position):
            return []
        idle = now - max(hop.grown, hop.linked)
        if idle <= STALL_SECONDS or not (sender is None or not sender.left or now - sender.grown < 1.0):
            return []
        self.links.pop(hop.name, None)
        return self._fault(name, hop, f"it has received nothing for {idle:.0f} s", "stalled")

    def _slow(self, hop: Hop) -> list[Verdict]:
        """Far slower than the host before it, whose data it lacks; than another was in its place; or than two others
        were, once nobody else is waited for."""
        sender = self.hops.get(self.sender_of(hop.name))
        others = [one for one in self.hops.values() if one is not hop]
        if not any(not (one.done or one.moves or one.direct) for one in others) and len(others) > 1:
            usual = sorted(one.usual() for one in others)[-2]
        elif sender is not None and hop is not self._in_row()[-1]:
            usual = sender.usual() if sender.position - hop.position >= LAG_BYTES else 0.0
        elif sender is None and not hop.direct and self._first is not None and hop.crawls(self._first[1]):
            (who, usual), self._first = self._first, None
            reason = f"another host is first: it crawls, where host {who} had {usual / 1e6:.1f} MB/s"
            return [Verdict(hop.name, "last", reason, "slow")] if self._to_end(hop) else []
        else:
            return []
        if not hop.crawls(usual):
            return []
        reason = f"it crawls: {(hop.rate() or 0.0) / 1e6:.1f} MB/s, where others have {usual / 1e6:.1f} MB/s"
        return self._fault(self.sender_of(hop.name), hop, reason, "slow")

    def _trial(self) -> list[Verdict]:
        """Whether the first host's own link holds up all others cannot be seen from here: in a long transfer, let
        another one be first, once. It costs one connection."""
        row = self._in_row()
        if self._tried or len(row) < 2:
            return []
        first, second = row[:2]
        rate = first.rate()
        if first.done or second.done or rate is None or first.left / max(rate, 1.0) < TRIAL_LEFT_SECONDS:
            return []
        if first.position - second.position > LAG_BYTES:
            return []  # it is not the first one's rate that all the others have
        self._tried, self._first = True, (first.name, rate)
        self._to_end(first)
        return [Verdict(first.name, "last", "another host is first for a while", "trial")]


def _named(sender: str) -> str:
    return f"host {sender}" if sender else "this machine"
