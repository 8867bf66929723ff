"""Who holds a broadcast up, and what is to happen to it. What can be taken back comes first.

A silent node is set aside within seconds, and is back when it speaks; only long silence is taken for death. A slow one
goes to the end of the chain, where it may go on at its own pace: it is given up when all others have theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fleet.ops.broadcast.chain import SOURCE, Chain, Hop

SILENCE_SECONDS = 1.5  # of a node that takes no bytes either
SILENCE_GAPS = 4.0  # on busy machines everyone's words come late
SILENCE_LIMIT = 8.0
DEAF_SECONDS = 8.0  # of one that does: its link may be too full for its words
DEATH_SECONDS = 10.0  # when all others are through; before that, nobody waits for it
LONG_DEATH_SECONDS = 18.0
HELD_UP_SECONDS = 1.0
STALL_SECONDS = 15.0
REDIALS = 3
CRAWL_FRACTION = 0.25
CRAWL_COST_SECONDS = 8.0
LAG_BYTES = 8 << 20
CRAWLERS_A_SENDER = 2  # when a second one crawls behind the same node, it is that node's own way out that is slow
MOVES = 3
SOURCE_TRIES = 3
TRIAL_LEFT_SECONDS = 20.0

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
        self._shut: dict[str, set[str]] = {}  # sender -> whom it could not reach
        self._unreached_by: dict[str, list[str]] = {}

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
            return [self._sure(hop, f"it does not keep to fleet's protocol: {why}", BROKEN, "protocol")]
        if hop.failures <= (REDIALS if connected else 1):
            return "redial"
        if not connected:
            return self._unreached(sender, hop, why)
        return [
            self._worse(
                hop,
                f"the link from {_named(sender)} broke {hop.failures} times: {why}",
                "look at the network between the two",
                "lost",
            )
        ]

    def _unreached(self, sender: str, hop: Hop, why: str) -> list[Verdict]:
        """Is it the one that cannot dial, or the one that cannot be dialled? Another pair of each will tell."""
        shut, unreached = self._shut.setdefault(sender, set()), self._unreached_by.setdefault(hop.name, [])
        again = sender in unreached
        shut.add(hop.name)
        if sender == SOURCE and len(shut) > SOURCE_TRIES:
            return [
                Verdict(name, "out", f"this machine cannot reach it, nor any other: {why}", OPEN_PORTS, "unreachable")
                for name, other in self._chain.hops.items()
                if not other.done
            ]
        own = self._chain.hops.get(sender)
        movable = own is not None and own.moves < MOVES
        if movable and len(shut) > 1 and not again:
            return [self._move(sender, "it reaches no other host: nobody depends on it from here on", "unreachable")]
        if not again:
            unreached.append(sender)
        reason = f"{' and '.join(map(_named, unreached))} cannot reach it: {why}"
        if not again and len(unreached) < 2 and not self._chain.is_last(hop.name) and hop.moves < MOVES:
            return [self._move(hop.name, reason, "unreachable")]
        if not again and len(unreached) < 2 and movable:
            return [self._move(sender, f"it does not reach host {hop.name}: {why}", "unreachable")]
        return [self._sure(hop, reason, OPEN_PORTS, "unreachable")]

    def corrupt(self, name: str, epoch: int) -> list[Verdict]:
        """A hop got by link `epoch` what is not in the source: nobody is to depend on its sender. [] when there is none
        to blame."""
        hop = self._chain.hops.get(name)
        sender = self._chain.before(hop) if hop is not None else None
        link = self._chain.links.get(sender.name) if sender is not None else None
        if hop is None or sender is None or link is None or link.epoch != epoch or hop.firsts >= MOVES:
            return []
        hop.complaints += 1
        movable = sender.moves < MOVES
        sender.suspect = True
        verdicts = [self._move(sender.name, f"what host {name} got from it is not in the source", "corrupt")] * movable
        if hop.complaints > 1 or not movable:
            verdicts.append(self._sure(hop, "what it gets from other hosts is not in the source", None, "corrupt"))
        return verdicts

    def given_up(self, name: str) -> list[Verdict]:
        """A hop will not get one of its files: what is behind it would get zeros for that one."""
        hop = self._chain.hops.get(name)
        if hop is None or self._chain.is_last(name) or hop.moves >= MOVES:
            return []
        hop.suspect = True
        return [self._move(name, "a file does not arrive there as it was sent", "corrupt")]

    def _move(self, name: str, reason: str, kind: str, hint: str | None = None) -> Verdict:
        self._chain.hops[name].moves += 1
        return Verdict(name, "last", reason, hint, kind)

    # -- silence -------------------------------------------------------------------------------------------
    def _patience(self) -> float:
        """Seconds of silence that are out of the ordinary now."""
        gaps = sorted(hop.gap for hop in self._chain.hops.values() if not hop.done)
        usual = gaps[len(gaps) // 2] if gaps else 0.0
        return min(SILENCE_LIMIT, max(SILENCE_SECONDS, SILENCE_GAPS * usual))

    def _silent(self, hop: Hop, now: float, patience: float) -> Verdict | None:
        silence = now - hop.heard
        takes = now - self._chain.sent_at(self._chain.sender_of(hop.name)) < SILENCE_SECONDS / 2
        if silence <= (max(DEAF_SECONDS, patience) if takes else patience):
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
        return self._worse(
            hop, f"it has received nothing for {idle:.0f} s", "look at its disk and at its link", "stalled", moves=1
        )

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
        if sender is not None and not self._chain.is_last(hop.name):
            sender.crawlers += 1
            if sender.crawlers >= CRAWLERS_A_SENDER and sender.moves < MOVES:
                return self._move(sender.name, "its way out is slow: the hosts behind it crawl", "slow")
        reason = f"it crawls: {rate / 1e6:.1f} MB/s, where host {who} has {usual / 1e6:.1f} MB/s"
        if sender is None:
            self._as_first = None  # everything may have become slower since that was measured
        elif self._chain.is_last(hop.name) and not self._alone(hop):
            return None  # nobody waits for it
        else:
            hop.usual = who, usual
        hop.slow_behind.add(self._chain.sender_of(hop.name))
        if self._as_first is not None and self._as_first[0] == hop.name and self._as_first[1] < usual * CRAWL_FRACTION:
            hop.slow_behind.add(SOURCE)
        return self._worse(hop, reason, LOOK_AT_LINK, "slow")

    def _alone(self, hop: Hop) -> bool:
        """All others are through."""
        return not self._chain.away and all(other.done for other in self._chain.hops.values() if other is not hop)

    def _worse(self, hop: Hop, reason: str, hint: str, kind: str, moves: int = MOVES) -> Verdict:
        """Another sender, with nobody behind it, if that may help; else the source; else it is given up."""
        found = hop.firsts and self._chain.before(hop) is None
        if not found and not self._chain.is_last(hop.name) and hop.moves < moves:
            return self._move(hop.name, reason, kind, hint)
        return self._sure(hop, reason, hint, kind)

    def _sure(self, hop: Hop, reason: str, hint: str | None, kind: str) -> Verdict:
        """Out, where that is what the source found; else it is to find out."""
        slow = kind == "slow" and len(hop.slow_behind) > 1
        if slow or self._chain.before(hop) is None or hop.firsts >= MOVES:
            return Verdict(hop.name, "out", reason, hint, kind)
        hop.firsts += 1
        return Verdict(hop.name, "first", reason, hint, kind)

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
