"""What each message of a member does; the coordinator, who holds its lock, asks here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fleet.delivery.chain.coordinator import Coordinator
from fleet.delivery.chain.member import Member
from fleet.errors import HostFailed, ProtocolError, Reason
from fleet.events import Progress
from fleet.protocol.messages import chain


def hello(head: Coordinator, member: Member, message: chain.Hello) -> None:
    head.locked(member.host.name)
    if member.outbox is not None and not member.greeted:
        member.greeted = True
        member.quiet.word()
        member.outbox.put(head.manifest.message)


def shared(head: Coordinator, member: Member, message: chain.Shared) -> None:
    if member.state != "starting":
        return
    if message["with"] not in head.members or message["with"] == member.host.name:
        raise ProtocolError("it shares a folder with nobody here", member.host.name)
    member.state = "shared"
    member.answer = replace(member.answer, shared_with=message["with"])
    head.maybe_go()


def lacks(head: Coordinator, member: Member, message: chain.Lacks) -> None:
    if member.state == "starting":
        member.take_part(message, head.manifest)


def need(head: Coordinator, member: Member, message: chain.Need) -> None:
    if member.state == "starting":
        member.take_need(message, head.manifest)
        head.maybe_go()


def failed(head: Coordinator, member: Member, message: chain.Refused) -> None:
    error = HostFailed(
        Reason.of_node(message["message"]),
        hint=message["hint"],
        host=member.host.name,
        kind=message.get("kind", "sync"),
    )
    head.out(member, error)
    head.locked(member.host.name)
    head.maybe_go()


def at(head: Coordinator, member: Member, message: chain.At) -> None:
    if head.steering is None or member.state not in ("receiving", "done"):
        return
    received, placed = message["received"], message["placed"]
    if received > member.received or len(head.manifest.files) >= placed > member.placed:
        member.quiet.word()
    member.received, member.placed = max(received, member.received), max(placed, member.placed)
    state = "done" if member.state == "done" else "receiving"
    head.emit(Progress(member.host.name, state, member.received, member.need["bytes"]))
    head.steering.heard(member.host.name, message)


def link(head: Coordinator, member: Member, message: chain.Link) -> None:
    head.broke(member.host.name, message)


def corrupt(head: Coordinator, member: Member, message: chain.Corrupt) -> None:
    if head.steering is not None and member.state == "receiving":
        if not member.lacks(message["file"]):
            raise ProtocolError("a file is wrong that it has", member.host.name)
        head.steering.corrupt(member.host.name, message["epoch"])


def done(head: Coordinator, member: Member, message: chain.Done) -> None:
    if head.steering is None or member.state != "receiving":
        return
    member.take_done(message)
    head.steering.chain.done(member.host.name)
    head.maybe_over()


HANDLERS: dict[str, Callable[[Coordinator, Member, Any], None]] = {
    "hello": hello,
    "shared": shared,
    "lacks": lacks,
    "need": need,
    "failed": failed,
    "at": at,
    "link": link,
    "corrupt": corrupt,
    "done": done,
}
