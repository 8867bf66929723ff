"""Keeps the chain whole: tells senders whom to serve, carries out what the judge says, and says what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fleet.delivery.chain.judge import HINTS, Judge, Verdict
from fleet.delivery.chain.member import Member
from fleet.delivery.chain.order import HERE, SOURCE, Chain
from fleet.errors import ConnectError, FleetError, HostFailed
from fleet.events import Emit, Notice, Progress
from fleet.node.delivery.chain.link import link_token
from fleet.protocol.messages.chain import At, Link

WHY_LENGTH = 200
Serve = Callable[[Member, int], None]


class Steering:
    """lacking: members to be served, in order. serve: has the source send to one, as that link number. fail: called for
    one that is given up. every: seconds between their words. limit: of the source, bytes a second.

    cuts: what the loss of a host cost the one behind it, {"host": who went, "behind": who lost, "lost_seconds"}. The
    caller holds its lock. named: the source, in words.
    """

    def __init__(
        self,
        lacking: Sequence[Member],
        emit: Emit,
        serve: Serve,
        fail: Callable[[Member, FleetError], None],
        every: float,
        limit: int | None,
        named: str = HERE,
    ) -> None:
        self.chain = Chain([(member.host.name, member.need["bytes"]) for member in lacking], time.monotonic(), limit)
        self.judge = Judge(self.chain, every, limit is not None, named)
        self.cuts: list[dict[str, str | float]] = []
        self._members = {member.host.name: member for member in lacking}
        self._emit, self._serve, self._fail, self._named = emit, serve, fail, named
        self._lost: dict[str, tuple[str, float, int]] = {}
        self._give()

    def heard(self, name: str, message: At) -> None:
        """A member's report of how far it is."""
        now, received = time.monotonic(), message["received"]
        self.chain.sent(name, message["sent"], now)
        if self.chain.heard(name, message["position"], received, now, message["placed"]):
            self._emit(Notice("info", "speaks again: it goes on at the end of the chain", name))
            self._give()
        if name in self._lost and received > self._lost[name][2]:
            gone, since, _ = self._lost.pop(name)
            seconds = round(now - since, 1)
            self.cuts.append({"host": gone, "behind": name, "lost_seconds": seconds})
            self._emit(Notice("info", f"goes on without host {gone}, {seconds:g} s lost", name))

    def link_broke(self, sender: str, message: Link) -> None:
        self._judged(self.judge.broke(sender, message["epoch"], message["kind"], message["why"][:WHY_LENGTH]))

    def corrupt(self, name: str, epoch: int) -> None:
        self._judged(self.judge.corrupt(name, epoch))

    def remove(self, name: str) -> None:
        """Close the gap that a host leaves behind."""
        self.chain.remove(name)
        self._give(name)

    def tick(self, sent: int) -> None:
        """sent: by the source, so far."""
        now = time.monotonic()
        self.chain.sent(SOURCE, sent, now)
        self._judged(self.judge.tick(now))

    def _judged(self, verdicts: Sequence[Verdict]) -> None:
        """Say what became of hosts, and make it so."""
        for verdict in verdicts:
            member, name = self._members[verdict.name], verdict.name
            if verdict.action == "out":
                gone = ConnectError if verdict.kind in ("dead", "lost", "unreachable") else HostFailed
                kind = "lost" if verdict.kind == "dead" else verdict.kind
                self._fail(member, gone(verdict.reason, hint=HINTS[verdict.kind], host=name, kind=kind))
            elif verdict.action == "aside" and member.state != "done":
                self._emit(Progress(name, "away", member.received, member.need["bytes"]))
                self._emit(Notice("warning", f"{verdict.reason}: the others go on without it", name))
            elif verdict.action == "direct":
                self._emit(Notice("info", f"gets its files from {self._named} from here on: {verdict.reason}", name))
            elif verdict.action == "last" and verdict.kind != "trial":
                self._emit(Notice("warning", f"goes to the end of the chain: {verdict.reason}", name))
            self._give(None if verdict.kind == "trial" else name)
        if not verdicts:
            self._give()

    def _give(self, gone: str | None = None) -> None:
        """Tell senders whom to serve, where that has changed; gone: because of whom."""
        for order in self.chain.orders():
            receiver, hop = self._members[order.receiver], self.chain.hops[order.receiver]
            if gone not in (None, order.receiver):
                self._lost[order.receiver] = (str(gone), hop.grown, hop.received)
            if order.sender == SOURCE:
                self._serve(receiver, order.epoch)
            else:
                token = link_token(receiver.token, order.epoch)
                sender = self._members[order.sender]
                sender.tell(op="next", epoch=order.epoch, token=token, addresses=receiver.addresses)
