"""Judges which hosts hold up a broadcast, and decides what becomes of each.

One rule holds for every fault between two hosts, because the head cannot know whose fault it is, and either host may
lie. First, the receiver is moved to the end of the chain, where it has another sender and no host waits for it. If the
receiver fails with that sender, too, the source itself serves it, outside the chain. If that fails as well, the
receiver is given up. A sender is moved to the end if two of its receivers failed. A silent host is away: it loses its
place until it sends again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from fleet.delivery.chain.order import HERE, SOURCE, Chain, Hop

SILENCE_SECONDS = 2.0  # for a node that takes no bytes
SILENCE_LIMIT = 8.0  # for a node that takes bytes: its link may be too full for its reports
DEATH_SECONDS = 12.0  # a host that sends no report for so long is given up
STALL_SECONDS = 15.0  # a hop that makes no progress for so long has stalled
LAG_BYTES = 8 << 20  # a hop that lacks so many bytes of what its sender has is slower than its sender
TRIAL_LEFT_SECONDS = 20.0  # no trial begins if the first host needs less time
UNREACHED = 3  # if the source cannot reach more hosts than this, all hosts are given up
# how often a link is tried again before its failure counts as a fault
TRIES = {"lost": 3, "unreachable": 1, "corrupt": 1}

Action = Literal["aside", "last", "direct", "out"]
# why a sender moves to the end, by the kind of fault that two of its receivers had
WAY_OUT = {
    "unreachable": "it reaches no other host",
    "slow": "its outgoing link is slow, and delays the hosts after it",
    "stalled": "what it sends does not arrive",
    "lost": "its links to other hosts break",
    "protocol": "it reports of several hosts that they do not keep to fleet's protocol",
    "corrupt": "what others got from it is not in the source",
}
HINTS = {
    "unreachable": "a firewall? open the nodes' ports to each other, or sync it as code: fleet sync PATH --to DEST",
    "slow": "look at its link and at its disk, then run this again",
    "stalled": "look at its disk and at its link",
    "lost": "look at the network between the two",
    "protocol": "something there breaks fleet's programs: look at the host",
    "corrupt": "look at the host's memory and disk; if it is so on all of them: at the source",
    "dead": "look at the host and at its link, then run this again",
}


@dataclass(frozen=True)
class Verdict:
    """Decides what becomes of a node. action: "aside": the others go on without the node; "last": it moves to the end;
    "direct": the source serves it; "out": it is given up. kind: as in FleetError; "trial" for a move that blames no
    host."""

    name: str
    action: Action
    reason: str
    kind: str = "lost"


class Judge:
    """Decides on the hops (nodes) of a chain. every: seconds between the reports of a hop. tried: there is no trial
    with another host first, see _trial(). named: the source's name in messages."""

    def __init__(self, chain: Chain, every: float = 0.2, tried: bool = False, named: str = HERE) -> None:
        self._chain, self._source = chain, named
        self._silence = max(SILENCE_SECONDS, 4 * every)
        self._tried = tried
        self._first: tuple[str, float] | None = None  # the host that was first before the trial, and its rate
        self._tries: Counter[tuple[str, str, str]] = Counter()
        self._faults: dict[tuple[str, str], None] = {}  # (sender, receiver) of links that failed

    def _named(self, sender: str) -> str:
        return f"host {sender}" if sender else self._source

    # -- whose fault it is ---------------------------------------------------------------------------------
    def broke(self, sender: str, epoch: int, kind: str, why: str) -> list[Verdict]:
        """Judges a link that failed, as its sender reports. Returns no verdict if the link is tried again, or is no
        longer in use."""
        link = next((one for one in self._chain.links.values() if (one.sender, one.epoch) == (sender, epoch)), None)
        if link is None:
            return []
        hop = self._chain.hops[link.receiver]
        del self._chain.links[hop.name]
        if hop.done:
            return []
        self._tries[sender, hop.name, kind] += 1
        if self._tries[sender, hop.name, kind] <= TRIES.get(kind, 0):
            return []
        senders = dict.fromkeys([source for source, receiver in self._faults if receiver == hop.name] + [sender])
        reasons = {
            "unreachable": f"{' and '.join(map(self._named, senders))} cannot reach it: {why}",
            "corrupt": "a file did not arrive as it was sent (changed while it was read?)",
            "lost": f"the link from {self._named(sender)} broke again and again: {why}",
            "protocol": f"it does not keep to fleet's protocol: {why}",
        }
        return self._fault(sender, hop, reasons[kind], kind, why)

    def corrupt(self, name: str, epoch: int) -> list[Verdict]:
        """Judges a hop that received wrong bytes over link `epoch`. At first, the file is requested again. The sender
        may have only passed the wrong bytes on; then it repairs its own copy, too."""
        return self.broke(self._chain.sender_of(name), epoch, "corrupt", "")

    def _fault(self, sender: str, hop: Hop, reason: str, kind: str, why: str = "") -> list[Verdict]:
        """Judges a fault between a sender and a hop. why: the system's own message, which is part of `reason`."""
        again = (sender, hop.name) in self._faults
        self._faults[sender, hop.name] = None
        senders = {one for one, receiver in self._faults if receiver == hop.name}
        receivers = {receiver for one, receiver in self._faults if one == sender}
        blamed = self._chain.hops.get(sender)
        if blamed is None and kind == "unreachable" and len(receivers) > UNREACHED:
            reason = f"{self._source} cannot reach it, nor any other: {why}"
            return [Verdict(name, "out", reason, kind) for name, one in self._chain.hops.items() if not one.done]
        if blamed is not None and len(receivers) > 1 and self._chain.to_end(blamed):
            return [Verdict(sender, "last", WAY_OUT[kind], kind)]
        if len(senders) == 1 and not (again or hop.direct) and self._chain.to_end(hop):
            return [Verdict(hop.name, "last", reason, kind)]
        if sender == SOURCE:
            return [Verdict(hop.name, "out", reason, kind)]
        hop.direct = True
        return [Verdict(hop.name, "direct", reason, kind)]

    # -- silence and speed ---------------------------------------------------------------------------------
    def tick(self, now: float) -> list[Verdict]:
        """Returns the verdicts that are due now. It is called several times a second."""
        late, self._chain.now = now - self._chain.now, now
        if late > 1.0:
            self._chain.forgive(late)
        if verdicts := self._silent(now):
            return verdicts
        # one hop at a time: the hops after it often suffer from the same fault
        for hop in [hop for hop in self._chain.hops.values() if not (hop.done or hop.away)]:
            if verdicts := self._stalled(hop, now) or self._slow(hop):
                return verdicts
        return self._trial()

    def _silent(self, now: float) -> list[Verdict]:
        there = [hop for hop in self._chain.hops.values() if not hop.away]
        silent = [hop for hop in there if now - hop.reported_at > self._patience(hop, now)]
        # if all hosts are silent at once, the head is cut off, and its connections will show that
        if len(silent) == len(there) > 1:
            return []
        for hop in silent:
            hop.away = True
        verdicts = [Verdict(hop.name, "aside", f"no sign of life for {now - hop.reported_at:.1f} s") for hop in silent]
        for hop in self._chain.hops.values():
            if hop.away and not hop.done and now - hop.reported_at > max(DEATH_SECONDS, 2 * self._silence):
                reason = f"frozen or cut off: no sign of life for {now - hop.reported_at:.1f} s"
                verdicts.append(Verdict(hop.name, "out", reason, "dead"))
        return verdicts

    def _patience(self, hop: Hop, now: float) -> float:
        takes = self._chain.takes(hop.name, now, self._silence / 2)
        return max(SILENCE_LIMIT, self._silence) if takes else self._silence

    def _stalled(self, hop: Hop, now: float) -> list[Verdict]:
        name = self._chain.sender_of(hop.name)
        sender = self._chain.hops.get(name)
        if not hop.left or (sender is not None and sender.position <= hop.position):
            return []
        idle = now - max(hop.grown, hop.linked)
        if idle <= STALL_SECONDS or not (sender is None or not sender.left or now - sender.grown < 1.0):
            return []
        self._chain.links.pop(hop.name, None)
        return self._fault(name, hop, f"it has received nothing for {idle:.0f} s", "stalled")

    def _slow(self, hop: Hop) -> list[Verdict]:
        """Judges a hop that is far slower than the usual rate. The usual rate is that of its sender, or of the host
        that was first before the trial. Once all other hops are done, moved or served by the source, it is the second
        best rate of these."""
        sender = self._chain.hops.get(self._chain.sender_of(hop.name))
        others = [one for one in self._chain.hops.values() if one is not hop]
        if not any(not (one.done or one.moves or one.direct) for one in others) and len(others) > 1:
            usual = sorted(one.usual() for one in others)[-2]
        elif sender is not None and hop is not self._chain.in_row()[-1]:
            usual = sender.usual() if sender.position - hop.position >= LAG_BYTES else 0.0
        elif sender is None and not hop.direct and self._first is not None and hop.crawls(self._first[1]):
            (who, usual), self._first = self._first, None
            reason = f"another host is first: it crawls, where host {who} had {usual / 1e6:.1f} MB/s"
            return [Verdict(hop.name, "last", reason, "slow")] if self._chain.to_end(hop) else []
        else:
            return []
        if not hop.crawls(usual):
            return []
        reason = f"it crawls: {(hop.rate() or 0.0) / 1e6:.1f} MB/s, where others have {usual / 1e6:.1f} MB/s"
        return self._fault(self._chain.sender_of(hop.name), hop, reason, "slow")

    def _trial(self) -> list[Verdict]:
        """Puts another host first, once, in a long transfer. The head cannot see whether the first host's own link
        holds up all the others. The trial costs one connection."""
        row = self._chain.in_row()
        if self._tried or len(row) < 2:
            return []
        first, second = row[:2]
        rate = first.rate()
        if first.done or second.done or rate is None or first.left / max(rate, 1.0) < TRIAL_LEFT_SECONDS:
            return []
        if first.position - second.position > LAG_BYTES:
            return []  # the second host is slower than the first, so the first does not hold it up
        self._tried, self._first = True, (first.name, rate)
        self._chain.to_end(first)
        return [Verdict(first.name, "last", "another host is first for a while", "trial")]
