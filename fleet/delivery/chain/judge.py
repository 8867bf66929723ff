"""Who holds a broadcast up, and what is to happen to it. What can be taken back comes first.

A silent node is set aside within seconds, and is back when it speaks; only long silence is taken for death. A slow one
goes to the end of the chain, where it may go on at its own pace: it is given up when all others have theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fleet.delivery.chain.order import SOURCE, Chain, Hop

SILENCE_SECONDS = 1.5  # of a node that takes no bytes either
SILENCE_GAPS = 4.0  # on busy machines everyone's words come late
SILENCE_LIMIT = 8.0  # also of one that takes bytes: its link may be too full for its words
DEATH_SECONDS = 10.0  # when all others are through; before that, nobody waits for it
LONG_DEATH_SECONDS = 18.0
HELD_UP_SECONDS = 1.0
STALL_SECONDS = 15.0
REDIALS = 3
CRAWL_FRACTION = 0.25
CRAWL_COST_SECONDS = 8.0
LAG_BYTES = 8 << 20
MOVES = 3
TRIAL_LEFT_SECONDS = 20.0

# of a sender behind which two hosts fared badly
WAY_OUT = {
    "unreachable": "it reaches no other host: nobody depends on it from here on",
    "slow": "its way out is slow: the hosts behind it crawl",
    "stalled": "what it sends does not arrive",
    "lost": "its links to other hosts break",
}
LOOK_AT_HOST = "look at the host and at its link, then run this again"
LOOK_AT_LINK = "look at its link and at its disk, then run this again"
BROKEN = "something there breaks fleet's programs: look at the host"
OPEN_PORTS = "a firewall? open the nodes' ports to each other, or use --via rsync"


@dataclass(frozen=True)
class Verdict:
    """aside: the others go on without `name` until it speaks; last: it goes to the end; first: the source itself sends
    to it; out: it is given up. What one member says of another may be a lie: only what the source finds puts one out.

    kind: a stable word, as in FleetError; "trial" for a move that blames nobody.
    """

    name: str
    action: Literal["aside", "last", "first", "out"]
    reason: str
    hint: str | None = None
    kind: str = "lost"


def _named(sender: str) -> str:
    return f"host {sender}" if sender else "this machine"


class Judge:
    """limited: the source sends at a rate that was asked for. Times are monotonic."""

    def __init__(self, chain: Chain, now: float, limited: bool = False) -> None:
        self._chain = chain
        self._ticked = now
        self._tried = limited
        self._as_first: tuple[str, float] | None = None  # what another host reached straight from the source
        self._faults: dict[tuple[str, str], None] = {}  # (sender, receiver) between whom something was wrong

    def tick(self, now: float) -> list[Verdict]:
        """What is to be done now. Called several times a second."""
        late, self._ticked = now - self._ticked, now
        chain = self._chain
        chain.now = now
        if late > HELD_UP_SECONDS:
            chain.forgive(late)
        patience = self._patience()
        waited_for = all(hop.done for hop in chain.hops.values())
        dead = [
            self._dead(hop, now)
            for hop in chain.away.values()
            if now - hop.heard > max(DEATH_SECONDS if waited_for else LONG_DEATH_SECONDS, 2 * patience)
        ]
        silent = [verdict for hop in chain.hops.values() if (verdict := self._silent(hop, now, patience))]
        # with all of them silent at once, it is the head that is cut off: the connections themselves will tell
        if len(silent) > 1 and len(silent) == len(chain.hops):
            return []
        if dead or silent:
            return dead + silent
        slow = (verdict for hop in chain.hops.values() if (verdict := self._stalled(hop, now) or self._slow(hop)))
        # one at a time: what its successors suffer from is often the same
        if (first := next(slow, None)) is not None:
            return [first]
        return self._trial()

    def broken(
        self, sender: str, epoch: int, connected: bool, why: str, nonsense: bool = False
    ) -> list[Verdict] | Literal["redial"]:
        """A link failed: dial again, or what becomes of its ends. [] when nobody waits for that link. nonsense: the
        sender says that the other end does not keep to the protocol."""
        hop = self._chain.broke(sender, epoch)
        if hop is None:
            return []
        hop.failures += 1
        if nonsense:
            if (sender, hop.name) in self._faults and self._movable(sender):
                return [self._move(sender, f"it accuses host {hop.name} again, which the source served", "protocol")]
            self._faults[sender, hop.name] = None
            return [self._sure(hop, f"it does not keep to fleet's protocol: {why}", BROKEN, "protocol")]
        if hop.failures <= (REDIALS if connected else 1):
            return "redial"
        if connected:
            reason = f"the link from {_named(sender)} broke {hop.failures} times: {why}"
            return [self._bad(sender, hop, reason, "look at the network between the two", "lost")]
        unreached = {receiver for source, receiver in self._faults if source == SOURCE} | {hop.name}
        if sender == SOURCE and len(unreached) > MOVES:
            return [
                Verdict(name, "out", f"this machine cannot reach it, nor any other: {why}", OPEN_PORTS, "unreachable")
                for name, other in self._chain.hops.items()
                if not other.done
            ]
        senders = dict.fromkeys([source for source, receiver in self._faults if receiver == hop.name] + [sender])
        reason = f"{' and '.join(map(_named, senders))} cannot reach it: {why}"
        return [self._bad(sender, hop, reason, OPEN_PORTS, "unreachable")]

    # -- whose fault it is ---------------------------------------------------------------------------------
    def _bad(self, sender: str, hop: Hop, reason: str, hint: str | None, kind: str) -> Verdict:
        """Something is wrong between two: the receiver gets another sender. Where it is wrong with another one, too,
        it is known whose fault it is: the sender's, who is to have nobody behind it, or the receiver's."""
        again, as_first = (sender, hop.name) in self._faults, sender == SOURCE and hop.firsts
        self._faults[sender, hop.name] = None
        senders = sum(receiver == hop.name for _, receiver in self._faults)
        receivers = sum(source == sender for source, _ in self._faults)
        if not again and not as_first:
            if receivers > 1 and self._movable(sender):
                return self._move(sender, WAY_OUT[kind], kind)
            if senders < 2 and self._movable(hop.name) and not self._chain.is_last(hop.name):
                return self._move(hop.name, reason, kind, hint)
            if senders < 2 and self._movable(sender):
                return self._move(sender, f"host {hop.name} is to have another sender: {reason}", kind)
        return self._sure(hop, reason, hint, kind, senders)

    def _movable(self, name: str) -> bool:
        return name in self._chain.hops and self._chain.hops[name].moves < MOVES

    def _move(self, name: str, reason: str, kind: str, hint: str | None = None) -> Verdict:
        self._chain.hops[name].moves += 1
        return Verdict(name, "last", reason, hint, kind)

    def _sure(self, hop: Hop, reason: str, hint: str | None, kind: str, senders: int = 1) -> Verdict:
        """Out, where that is what the source found, or several found it slow; else the source is to find out."""
        if kind == "slow" and senders > 1 or self._chain.before(hop) is None or hop.firsts >= MOVES:
            return Verdict(hop.name, "out", reason, hint, kind)
        hop.firsts += 1
        return Verdict(hop.name, "first", reason, hint, kind)

    def corrupt(self, name: str, epoch: int) -> list[Verdict]:
        """A hop got by link `epoch` what is not in the source: nobody is to depend on its sender. [] when there is none
        to blame."""
        hop = self._chain.hops.get(name)
        sender = self._chain.before(hop) if hop is not None else None
        link = self._chain.links.get(sender.name) if sender is not None else None
        if hop is None or sender is None or link is None or link.epoch != epoch or hop.firsts >= MOVES:
            return []
        hop.complaints += 1
        sender.suspect = True
        verdicts = []
        movable = self._movable(sender.name)
        if movable:
            verdicts = [self._move(sender.name, f"what host {name} got from it is not in the source", "corrupt")]
        if hop.complaints > 1 or not movable:
            verdicts.append(self._sure(hop, "what it gets from other hosts is not in the source", None, "corrupt"))
        return verdicts

    def given_up(self, name: str) -> list[Verdict]:
        """A hop will not get one of its files: what is behind it would get zeros for that one."""
        hop = self._chain.hops.get(name)
        if hop is None or self._chain.is_last(name) or not self._movable(name):
            return []
        hop.suspect = True
        return [self._move(name, "a file does not arrive there as it was sent", "corrupt")]

    # -- silence -------------------------------------------------------------------------------------------
    def _patience(self) -> float:
        """Seconds of silence that are out of the ordinary now."""
        gaps = sorted(hop.gap for hop in self._chain.hops.values() if not hop.done)
        usual = gaps[len(gaps) // 2] if gaps else 0.0
        return min(SILENCE_LIMIT, max(SILENCE_SECONDS, SILENCE_GAPS * usual))

    def _silent(self, hop: Hop, now: float, patience: float) -> Verdict | None:
        silence = now - hop.heard
        takes = now - self._chain.sent_at(self._chain.sender_of(hop.name)) < SILENCE_SECONDS / 2
        if silence <= (SILENCE_LIMIT if takes else patience):
            return None
        return Verdict(hop.name, "out" if hop.done else "aside", f"no sign of life for {silence:.1f} s")

    def _dead(self, hop: Hop, now: float) -> Verdict:
        return Verdict(hop.name, "out", f"frozen or cut off: no sign of life for {now - hop.heard:.1f} s", LOOK_AT_HOST)

    # -- speed ---------------------------------------------------------------------------------------------
    def _stalled(self, hop: Hop, now: float) -> Verdict | None:
        sender = self._chain.before(hop)
        if hop.done or not hop.left or (sender is not None and sender.position <= hop.position):
            return None
        idle = now - max(hop.grown, hop.linked)
        if idle <= STALL_SECONDS or not (sender is None or not sender.left or now - sender.grown < 1.0):
            return None
        reason = f"it has received nothing for {idle:.0f} s"
        return self._bad(self._chain.sender_of(hop.name), hop, reason, "look at its disk and at its link", "stalled")

    def _slow(self, hop: Hop) -> Verdict | None:
        """Far slower than the host before it, whose data it lacks, or than another host was in its place."""
        sender, rate = self._chain.before(hop), hop.rate()
        if hop.done or not hop.left or rate is None:
            return None
        if sender is not None:
            who, usual = sender.name, sender.average()
            if sender.position - hop.position < LAG_BYTES:
                return None
        elif hop.usual is not None:
            who, usual = hop.usual
        elif self._as_first is not None and self._as_first[0] != hop.name:
            who, usual = self._as_first
        else:
            return None
        if not usual or rate >= usual * CRAWL_FRACTION:
            return None
        if hop.left / max(rate, 1.0) - hop.left / usual <= CRAWL_COST_SECONDS:
            return None
        reason = f"it crawls: {rate / 1e6:.1f} MB/s, where host {who} has {usual / 1e6:.1f} MB/s"
        if sender is None:
            self._as_first = None  # everything may have become slower since that was measured
        elif self._chain.is_last(hop.name) and not self._alone(hop):
            return None  # nobody waits for it
        else:
            hop.usual = who, usual
        if self._as_first is not None and self._as_first[0] == hop.name and self._as_first[1] < usual * CRAWL_FRACTION:
            self._faults[SOURCE, hop.name] = None  # when it was first, it held up all others
        return self._bad(self._chain.sender_of(hop.name), hop, reason, LOOK_AT_LINK, "slow")

    def _alone(self, hop: Hop) -> bool:
        """All others are through."""
        return not self._chain.away and all(other.done for other in self._chain.hops.values() if other is not hop)

    def _trial(self) -> list[Verdict]:
        """Whether the first host's own link holds up all others cannot be seen from here: in a long transfer, let
        another one be first, once. It costs one connection."""
        if self._tried or len(self._chain.hops) < 2:
            return []
        first, second, *_ = self._chain.hops.values()
        rate = first.rate()
        if first.done or second.done or rate is None or first.left / max(rate, 1.0) < TRIAL_LEFT_SECONDS:
            return []
        if first.position - second.position > LAG_BYTES:
            return []  # it is not the first one's rate that all the others have
        self._tried, self._as_first = True, (first.name, rate)
        return [Verdict(first.name, "last", "another host is first for a while", kind="trial")]
