"""Keeps the chain whole: tells senders whom to serve, carries out what the judge says, and says what it cost."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fleet.delivery.chain.judge import Judge, Verdict
from fleet.delivery.chain.losses import Losses
from fleet.delivery.chain.member import Member
from fleet.delivery.chain.order import SOURCE, Chain, Order
from fleet.delivery.chain.source import Source
from fleet.errors import ConnectError, FleetError, HostFailed, ProtocolError
from fleet.events import Emit, Notice, Progress
from fleet.protocol.messages.chain import At, Link

DOUBT_SECONDS = 0.5
SAME_TRIES, MOST_TRIES = 3, 20
WHY_LENGTH = 200


class Steering:
    """lacking: members to be served, in order. fail: called for one that is given up. reach: where the source can dial
    a member. limited: whether the source's rate is limited by wish. The caller holds its lock."""

    def __init__(
        self,
        lacking: Sequence[Member],
        source: Source,
        emit: Emit,
        fail: Callable[[Member, FleetError], None],
        reach: Callable[[Member], list[list[Any]]],
        limited: bool,
    ) -> None:
        now = time.monotonic()
        self.chain = Chain([(member.host.name, member.need["bytes"]) for member in lacking], now)
        self.losses = Losses()
        self._judge = Judge(self.chain, now, limited)
        self._members = {member.host.name: member for member in lacking}
        self._source, self._emit, self._fail, self._reach = source, emit, fail, reach
        self._doubts: list[tuple[float, Member, int, int | None]] = []
        self._tries: dict[tuple[str, int], int] = {}
        self._give(self.chain.orders())

    def sent(self, name: str, count: int) -> None:
        """A member, or the source, has sent so many bytes."""
        self.chain.sent(name, count, time.monotonic())

    def heard(self, name: str, message: At) -> None:
        """A member's report of how far it is."""
        now = time.monotonic()
        self.sent(name, message["sent"])
        self.chain.heard(name, message["position"], message["received"], now, message["placed"])
        if name in self.chain.away:
            self._emit(Notice("info", "speaks again: it goes on at the end of the chain", name))
            self._give(self.chain.rejoin(name))
        if lost := self.losses.end(self.chain, name, now):
            self._emit(Notice("info", f"goes on without host {lost[0]}, {lost[1]:g} s lost", name))

    def link_broke(self, sender: str, message: Link) -> None:
        answer = self._judge.broken(
            sender, message["epoch"], message["connected"], message["why"][:WHY_LENGTH], message["nonsense"]
        )
        if answer == "redial":
            self._give(self.chain.redial(sender))
        else:
            for verdict in answer:
                self._carry_out(verdict)

    def remove(self, name: str) -> None:
        """Close the gap that a host leaves behind."""
        self._mend(name, self.chain.remove(name))

    def corrupt(self, member: Member, file: int, epoch: int | None) -> None:
        """A member got a file with another digest than the source's. What is done about it waits a moment: if its
        sender says the same, it only passed that on."""
        tries = self._tries.get((member.host.name, file), 0)
        if tries >= MOST_TRIES:
            raise ProtocolError("it says the same of a file again and again", member.host.name)
        self._tries[member.host.name, file] = tries + 1
        self._doubts.append((time.monotonic(), member, file, epoch))

    def _settle_doubts(self, now: float) -> None:
        ripe = [doubt for doubt in self._doubts if now - doubt[0] >= DOUBT_SECONDS]
        del self._doubts[: len(ripe)]
        places = {name: place for place, name in enumerate(self.chain.hops)}
        for _, member, file, epoch in sorted(ripe, key=lambda doubt: places.get(doubt[1].host.name, len(places))):
            name = member.host.name
            verdicts = []
            if epoch is not None and (self.chain.sender_of(name), file) not in self._tries:
                verdicts = self._judge.corrupt(name, epoch)
            for verdict in verdicts:
                self._carry_out(verdict)
            if not verdicts and self._tries[name, file] < SAME_TRIES:
                member.tell(op="again", files=[file])
            elif not verdicts:
                for verdict in self._judge.given_up(name):
                    self._carry_out(verdict)
                member.tell(op="fail", files=[[file, "did not arrive as it was sent (changed while it was read?)"]])

    def tick(self) -> None:
        now = time.monotonic()
        self._settle_doubts(now)
        for verdict in self._judge.tick(now):
            self._carry_out(verdict)

    def _carry_out(self, verdict: Verdict) -> None:
        name = verdict.name
        if verdict.action == "out":
            if self._members[name].state == "done":
                self.remove(name)
            else:
                gone = ConnectError if verdict.kind in ("lost", "unreachable") else HostFailed
                self._fail(self._members[name], gone(verdict.reason, hint=verdict.hint, host=name, kind=verdict.kind))
        elif verdict.action == "aside":
            member = self._members[name]
            self._emit(Progress(name, "away", member.received, member.need["bytes"]))
            self._emit(Notice("warning", f"{verdict.reason}: the others go on without it", name))
            self._mend(name, self.chain.set_aside(name))
        elif verdict.action == "first":
            self._emit(Notice("info", f"gets its files from this machine from here on: {verdict.reason}", name))
            self._give(self.chain.to_front(name))
        elif verdict.kind == "trial":
            self._give(self.chain.to_end(name))
        else:
            self._emit(Notice("warning", f"goes to the end of the chain: {verdict.reason}", name))
            self._mend(name, self.chain.to_end(name))

    def _mend(self, gone: str, orders: Iterable[Order]) -> None:
        orders = list(orders)
        for order in orders:
            if order.receiver != gone:
                self.losses.begin(gone, self.chain.hops[order.receiver])
        self._give(orders)

    def _give(self, orders: Iterable[Order]) -> None:
        for order in orders:
            receiver = self._members[order.receiver]
            # of this link only: who was once told it must not come back in another's place
            token = hmac.new(receiver.token.encode(), str(order.epoch).encode(), hashlib.sha256).hexdigest()
            message = {"op": "next", "epoch": order.epoch, "token": token}
            if order.sender == SOURCE:
                self._source.tell(**message, addresses=self._reach(receiver))
            else:
                self._members[order.sender].tell(**message, addresses=receiver.addresses)
