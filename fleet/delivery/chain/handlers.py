"""Handles the messages that the members of a chain send to the head."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fleet.delivery.chain.coordinator import Coordinator
from fleet.delivery.chain.member import LISTS, Member
from fleet.errors import HostFailed, ProtocolError, Reason
from fleet.events import Notice, Progress
from fleet.protocol.messages import chain
from fleet.protocol.messages.chain import MemberMessage
from fleet.transport.frames import decoded


class Head(Coordinator):
    """Coordinates a chain, and handles the messages of its members, by a method for each kind."""

    def handle(self, name: str, message: Mapping[str, Any]) -> None:
        """Handles a member's message. Raises ProtocolError for a message that no sound member sends."""
        with self.lock:
            checked, member = decoded(MemberMessage, message, name), self.members[name]
            if checked["event"] == "doubts" or checked["event"] == "own":
                items = member.take(checked["event"], checked["items"], self.manifest)
                if member.state == "starting" and not checked["more"]:
                    (self._doubts if checked["event"] == "doubts" else self.consent)(member, items)
            else:
                getattr(self, "_" + checked["event"])(member, checked)

    def _hello(self, member: Member, message: chain.Hello) -> None:
        self.locked(member.host.name)
        if member.outbox is not None and not member.greeted:
            member.greeted = True
            self.answer(member, self.manifest.message)

    def _shared(self, member: Member, message: chain.Shared) -> None:
        if member.state != "starting":
            return
        if message["with"] not in self.members or message["with"] == member.host.name:
            raise ProtocolError("it shares a folder with no host of this sync", member.host.name)
        member.state = "shared"
        member.answer = replace(member.answer, shared_with=message["with"])
        self.maybe_go()

    def _doubts(self, member: Member, files: list[int]) -> None:
        if max(files) >= len(self.manifest.files):
            raise ProtocolError("it asks for files that are not in the source", member.host.name)
        member.unsure = files
        self.settle(member)

    def _lacks(self, member: Member, message: chain.Lacks) -> None:
        if not any(message.get(name) for name in LISTS):
            raise ProtocolError("it lacks nothing, and says so", member.host.name)
        for name in LISTS:
            if part := message.get(name):
                member.take(name, part, self.manifest)

    def _need(self, member: Member, message: chain.Need) -> None:
        if member.state == "starting":
            member.take_need(message, self.manifest)
            self.maybe_go()

    def _failed(self, member: Member, message: chain.Refused) -> None:
        error = HostFailed(
            Reason.of_node(message["message"]),
            hint=message["hint"],
            host=member.host.name,
            kind=message.get("kind", "sync"),
        )
        self.locked(member.host.name)
        self.out(member, error)
        self.maybe_go()

    def _at(self, member: Member, message: chain.At) -> None:
        if self.chain is None or member.state not in ("receiving", "done"):
            return
        name, now, received, placed = member.host.name, time.monotonic(), message["received"], message["placed"]
        if received > member.received or len(self.manifest.files) >= placed > member.placed:
            member.quiet.received()
        member.received, member.placed = max(received, member.received), max(placed, member.placed)
        self.emit(Progress(name, member.state, member.received, member.need["bytes"]))
        self.chain.sent(name, message["sent"], now)
        if self.chain.record_report(name, message["position"], received, now, placed):
            self.emit(Notice("info", "sends again: it goes on at the end of the chain", name))
            self._give()
        if name in self._lost and received > self._lost[name][2]:
            gone, since, _ = self._lost.pop(name)
            seconds = round(now - since, 1)
            self.cuts.append({"host": gone, "behind": name, "lost_seconds": seconds})
            self.emit(Notice("info", f"goes on without host {gone}, {seconds:g} s lost", name))

    def _link(self, member: Member, message: chain.Link) -> None:
        self.broke(member.host.name, message)

    def _corrupt(self, member: Member, message: chain.Corrupt) -> None:
        if self.chain is not None and member.state == "receiving":
            if not member.lacks(message["file"]):
                raise ProtocolError("a file is wrong that it has", member.host.name)
            self.judged(self.judge.corrupt(member.host.name, message["epoch"]))

    def _done(self, member: Member, message: chain.Done) -> None:
        if self.chain is None or member.state != "receiving":
            return
        member.take_done(message)
        self.chain.done(member.host.name)
        self.maybe_over()
