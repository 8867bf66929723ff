"""Keeps the chain whole: tells senders whom to serve, carries out what the judge says, and says what it cost."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fleet.errors import FleetError, HostFailed
from fleet.events import Emit, Notice, Progress
from fleet.ops.broadcast.chain import SOURCE, Chain, Order
from fleet.ops.broadcast.judge import Judge, Verdict
from fleet.ops.broadcast.losses import Losses
from fleet.ops.broadcast.member import Member, count_of
from fleet.ops.broadcast.source import Source


class Steering:
    """lacking: members to be served, in order. fail: called for one that is given up. reach: where the source can dial
    a member. limited: whether the source's rate is limited by wish. The caller holds its lock."""

    def __init__(self, lacking: Sequence[Member], source: Source, emit: Emit,
                 fail: Callable[[Member, FleetError], None], reach: Callable[[Member], list[list[Any]]],
                 limited: bool) -> None:
        now = time.monotonic()
        self.chain = Chain([(member.host.name, member.need["bytes"]) for member in lacking], now)
        self.losses = Losses()
        self._judge = Judge(self.chain, now, limited)
        self._members = {member.host.name: member for member in lacking}
        self._source, self._emit, self._fail, self._reach = source, emit, fail, reach
        self._give(self.chain.orders())

    def heard(self, name: str, message: Mapping[str, Any]) -> None:
        """A member's or the source's report of how far it is."""
        now = time.monotonic()
        self.chain.sent(name, count_of(message["sent"]), now)
        if name == SOURCE:
            return
        self.chain.heard(name, count_of(message["position"]), count_of(message["received"]), now)
        if name in self.chain.away:
            self._emit(Notice("info", "speaks again: it goes on at the end of the chain", name))
            self._give(self.chain.rejoin(name))
        if lost := self.losses.end(self.chain, name, now):
            self._emit(Notice("info", f"goes on without host {lost[0]}, {lost[1]:g} s lost", name))

    def link_broke(self, sender: str, message: Mapping[str, Any]) -> None:
        epoch, connected = int(message["epoch"]), bool(message["connected"])
        answer = self._judge.broken(sender, epoch, connected, str(message["why"]))
        if answer == "redial":
            self._give(self.chain.redial(sender))
        else:
            for verdict in answer:
                self._carry_out(verdict)

    def remove(self, name: str) -> None:
        """Close the gap that a host leaves behind."""
        self._mend(name, self.chain.remove(name))

    def tick(self) -> None:
        for verdict in self._judge.tick(time.monotonic()):
            self._carry_out(verdict)

    def _carry_out(self, verdict: Verdict) -> None:
        name = verdict.name
        if verdict.action == "out":
            if self._members[name].state == "done":
                self.remove(name)
            else:
                self._fail(self._members[name], HostFailed(
                    verdict.reason, hint=verdict.hint, host=name, kind=verdict.kind))
        elif verdict.action == "aside":
            member = self._members[name]
            self._emit(Progress(name, "away", member.received, member.need["bytes"]))
            self._emit(Notice("warning", f"{verdict.reason}: the others go on without it", name))
            self._mend(name, self.chain.set_aside(name))
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
