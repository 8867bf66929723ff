"""What the head does while members talk: waits for all, starts the chain, mends it, passes digests on, ends it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from fleet.delivery.chain.member import Member, Outbox
from fleet.delivery.chain.order import HINTS, SOURCE, Chain, Verdict
from fleet.delivery.manifest import Manifest
from fleet.errors import ConnectError, FleetError, HostFailed, Interrupted, ProtocolError, Reason
from fleet.events import Emit, Event, Notice, Progress
from fleet.node.delivery.chain.link import link_token
from fleet.protocol.messages import chain
from fleet.protocol.messages.chain import MemberMessage
from fleet.transport.frames import decoded

TICK_SECONDS = 0.2
GOODBYE_SECONDS = 3.0
CHANGED = "changed in the source while it was read"
WHY_LENGTH = 200


class Files(Protocol):
    """What has all of the files: see source.Source."""

    digests: dict[int, str]
    changed: set[int]
    on_news: Callable[[dict[int, str], set[int]], None]
    on_link: Callable[[chain.Link], None]

    @property
    def sent(self) -> int: ...
    def ask(self, files: Iterable[int]) -> set[int]: ...
    def end(self) -> None: ...


class Coordinator:
    """members: every host, in inventory order. serve: has the source send to a member, as link number epoch.
    star: brings a member its files without a chain, in its own thread. every, limit: see order.Chain. locked: told of
    each host that holds its lock, or has none to take.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        members: Sequence[Member],
        manifest: Manifest,
        emit: Emit,
        source: Files,
        serve: Callable[[Member, int], None],
        *,
        star: Callable[[Member], None] | None = None,
        every: float = 0.2,
        limit: int | None = None,
        locked: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.members = {member.host.name: member for member in members}
        self.manifest = manifest
        self.over = threading.Event()
        self.source = source
        self.cuts: list[dict[str, str | float]] = []  # {"host": who went, "behind": who lost, "lost_seconds"}
        for member in members:
            member.work = manifest.size
        self._view, self._serve, self._star, self._locked = emit, serve, star, locked
        self._every, self._limit = every, limit
        self._lock = threading.RLock()
        self._chain: Chain | None = None
        self._staged = 0
        self._lost: dict[str, tuple[str, float, int]] = {}
        source.on_news, source.on_link = self._news, self._source_link
        # one for each event that says something to the head
        self._of_member: dict[str, Callable[[Member, Any], None]] = {
            "hello": self._hello,
            "shared": self._shared,
            "lacks": self._lacks,
            "need": self._need,
            "failed": self._failed,
            "at": self._at,
            "link": self._link,
            "corrupt": self._corrupt,
            "done": self._done,
        }

    @property
    def sent(self) -> int:
        """Bytes that left this machine."""
        return self._staged + self.source.sent

    # -- members come and go -------------------------------------------------------------------------------
    def _emit(self, event: Event) -> None:
        with contextlib.suppress(Exception):  # a view that fails must not leave the nodes without their coordinator
            self._view(event)

    def opened(self, member: Member, outbox: Outbox) -> None:
        with self._lock:
            member.outbox = outbox
            member.quiet.word()
            if self.over.is_set():
                member.tell(op="end")

    def left(self, name: str, error: FleetError | None) -> None:
        """A host's conversation is over, or never began."""
        with self._lock:
            member = self.members[name]
            self._locked(name)
            if member.state not in ("done", "shared", "out"):
                self._out(member, error or HostFailed("it ended early", host=name, kind="protocol"))
            elif not self.over.is_set():
                self._remove(name)
            self._maybe_go()

    def _out(self, member: Member, error: FleetError) -> None:
        member.fail(error)
        self._emit(Progress(member.host.name, "out", 0))
        if self._chain is not None:
            if not isinstance(error, Interrupted):
                self._emit(Notice("warning", f"out of the chain: {error.message}", member.host.name, error.hint))
            self._remove(member.host.name)
            self._maybe_over()

    # -- what members say ----------------------------------------------------------------------------------
    def handle(self, name: str, message: Mapping[str, Any]) -> None:
        """What a member said; ProtocolError for what none of them says."""
        with self._lock:
            told = decoded(MemberMessage, message, name)
            self._of_member[told["event"]](self.members[name], told)

    def _hello(self, member: Member, message: chain.Hello) -> None:
        self._locked(member.host.name)
        if member.outbox is not None and not member.greeted:
            member.greeted = True
            member.quiet.word()
            member.outbox.put(self.manifest.message)

    def _shared(self, member: Member, message: chain.Shared) -> None:
        if member.state != "starting":
            return
        if message["with"] not in self.members or message["with"] == member.host.name:
            raise ProtocolError("it shares a folder with nobody here", member.host.name)
        member.state = "shared"
        member.data["shared_with"] = message["with"]
        self._maybe_go()

    def _lacks(self, member: Member, message: chain.Lacks) -> None:
        if member.state == "starting":
            member.take_part(message, self.manifest)

    def _need(self, member: Member, message: chain.Need) -> None:
        if member.state == "starting":
            member.take_need(message, self.manifest, self._star is None)
            self._maybe_go()

    def _failed(self, member: Member, message: chain.Refused) -> None:
        error = HostFailed(
            Reason.of_node(message["message"]),
            hint=message["hint"],
            host=member.host.name,
            kind=message.get("kind", "sync"),
        )
        self._out(member, error)
        self._locked(member.host.name)
        self._maybe_go()

    def _at(self, member: Member, message: chain.At) -> None:
        if self._chain is None or member.state not in ("receiving", "done"):
            return
        received, placed, name, now = message["received"], message["placed"], member.host.name, time.monotonic()
        if received > member.received or len(self.manifest.files) >= placed > member.placed:
            member.quiet.word()
        member.received, member.placed = max(received, member.received), max(placed, member.placed)
        state = "done" if member.state == "done" else "receiving"
        self._emit(Progress(name, state, member.received, member.need["bytes"]))
        self._chain.sent(name, message["sent"], now)
        if self._chain.heard(name, message["position"], received, now, placed):
            self._emit(Notice("info", "speaks again: it goes on at the end of the chain", name))
            self._give()
        if name in self._lost and received > self._lost[name][2]:
            gone, since, _ = self._lost.pop(name)
            seconds = round(now - since, 1)
            self.cuts.append({"host": gone, "behind": name, "lost_seconds": seconds})
            self._emit(Notice("info", f"goes on without host {gone}, {seconds:g} s lost", name))

    def _link(self, member: Member, message: chain.Link) -> None:
        self._broke(member.host.name, message)

    def _corrupt(self, member: Member, message: chain.Corrupt) -> None:
        if self._chain is not None and member.state == "receiving":
            if not member.lacks(message["file"]):
                raise ProtocolError("a file is wrong that it has", member.host.name)
            self._chain.corrupt(member.host.name, message["epoch"], message["file"])

    def _done(self, member: Member, message: chain.Done) -> None:
        if self._chain is None or member.state != "receiving":
            return
        member.state = "done"
        member.data |= {"files": message["files"], "bytes": message["bytes"]}
        problems = message["problems"]
        if problems:
            more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
            member.error = HostFailed(
                f"{problems[0][0]} {problems[0][1]}{more}",
                host=member.host.name,
                kind="digest",
                hint="it is not there under its name; run this again when the source is at rest",
            )
            member.data["problems"] = [list(problem) for problem in problems]
        if member.host.name in self._chain.hops:
            self._chain.hops[member.host.name].done = True
        self._maybe_over()

    # -- what the source says ------------------------------------------------------------------------------
    def _news(self, digests: dict[int, str], changed: set[int]) -> None:
        with self._lock:
            self._maybe_go()
            for member in self.members.values():
                if member.state == "receiving":
                    self._pass_on(member, digests, changed)

    def _pass_on(self, member: Member, digests: Mapping[int, str], changed: Iterable[int]) -> None:
        """Give a member those digests that it needs; tell it what it will not get."""
        if wanted := [[i, digest] for i, digest in digests.items() if member.lacks(i)]:
            member.tell(op="digests", files=wanted)
        if failed := [[index, CHANGED] for index in changed]:
            member.tell(op="fail", files=failed)

    def _source_link(self, message: chain.Link) -> None:
        with self._lock:
            self._broke(SOURCE, message)

    # -- the chain -----------------------------------------------------------------------------------------
    def _maybe_go(self) -> None:
        """Start once everybody has answered, and the files that some are unsure of are known."""
        members = self.members.values()
        if self._chain is not None or self.over.is_set() or any(m.state == "starting" for m in members):
            return
        refused = [m for m in members if isinstance(m.error, HostFailed)]
        if refused:
            names = ", ".join(m.host.name for m in refused)
            self.abort(
                HostFailed(
                    f"nothing was sent, because of host {names}",
                    hint=f"mend that, or leave it out: -x {names.replace(' ', '')}",
                    kind="not-sent",
                )
            )
            return
        ready = [m for m in members if m.state == "ready"]
        if self.source.ask(i for m in ready for i in m.need["unsure"]):
            return
        self._go(ready)

    def _go(self, ready: list[Member]) -> None:
        for member in ready:
            member.settle(self.source.digests, self.manifest)
        lacking = [m for m in ready if any(True for _ in m.lacking())]
        for member in ready:
            member.state = "receiving"
            member.quiet.word()
            member.tell(op="go", held=sorted(member.held))
            self._pass_on(member, self.source.digests, self.source.changed)
        hops = [] if self._star else [(member.host.name, member.need["bytes"]) for member in lacking]
        self._chain = Chain(hops, time.monotonic(), self._every, self._limit)
        self._give()
        for member in lacking if self._star else ():
            threading.Thread(target=self._star, args=(member,), daemon=True).start()
        self.source.ask(i for m in lacking for i in m.lacking())
        self._maybe_over()

    def _give(self, gone: str | None = None) -> None:
        """Tell senders whom to serve, where that has changed; gone: because of whom."""
        assert self._chain is not None
        for order in self._chain.orders():
            receiver = self.members[order.receiver]
            if gone not in (None, order.receiver):
                hop = self._chain.hops[order.receiver]
                self._lost[order.receiver] = (str(gone), hop.grown, hop.received)
            if order.sender == SOURCE:
                self._serve(receiver, order.epoch)
            else:
                token = link_token(receiver.token, order.epoch)
                self.members[order.sender].tell(op="next", epoch=order.epoch, token=token, addresses=receiver.addresses)

    def _remove(self, name: str) -> None:
        """Close the gap that a host leaves behind."""
        if self._chain is not None:
            self._chain.remove(name)
            self._give(name)

    def _broke(self, sender: str, message: chain.Link) -> None:
        if self._chain is not None and not self.over.is_set():
            self._judged(self._chain.broke(sender, message["epoch"], message["kind"], message["why"][:WHY_LENGTH]))

    def _judged(self, verdicts: Sequence[Verdict]) -> None:
        """Say what became of hosts, and make it so."""
        for verdict in verdicts:
            member, name = self.members[verdict.name], verdict.name
            if verdict.action == "out":
                gone = ConnectError if verdict.kind in ("dead", "lost", "unreachable") else HostFailed
                kind = "lost" if verdict.kind == "dead" else verdict.kind
                self._give_up(member, gone(verdict.reason, hint=HINTS[verdict.kind], host=name, kind=kind))
            elif verdict.action == "aside" and member.state != "done":
                self._emit(Progress(name, "away", member.received, member.need["bytes"]))
                self._emit(Notice("warning", f"{verdict.reason}: the others go on without it", name))
            elif verdict.action == "direct":
                self._emit(Notice("info", f"gets its files from this machine from here on: {verdict.reason}", name))
            elif verdict.action == "last" and verdict.kind != "trial":
                self._emit(Notice("warning", f"goes to the end of the chain: {verdict.reason}", name))
            self._give(None if verdict.kind == "trial" else name)
        if not verdicts:
            self._give()

    def staged(self, name: str, count: int) -> None:
        """A member has everything without a chain; it took this many bytes."""
        with self._lock:
            self._staged += count
            member = self.members[name]
            member.received = max(member.received, member.need["bytes"])
            member.quiet.word()

    def give_up(self, name: str, error: FleetError) -> None:
        """A member cannot be served."""
        with self._lock:
            self._give_up(self.members[name], error)

    def _give_up(self, member: Member, error: FleetError) -> None:
        if member.state == "receiving":
            self._out(member, error)
            member.cancel.set()

    def tick(self) -> None:
        with self._lock:
            for member in list(self.members.values()):
                self._watch(member)
            if self._chain is not None and not self.over.is_set():
                self._chain.sent(SOURCE, self.source.sent, time.monotonic())
                self._judged(self._chain.tick(time.monotonic()))

    def _watch(self, member: Member) -> None:
        """A node that only says that it lives, and never what it has got to, holds nobody up for ever."""
        limit, seconds = member.limit, member.quiet.seconds()
        if limit is not None and seconds > limit:
            self._out(
                member,
                ConnectError(
                    f"it has got nowhere for {seconds:.0f} s",
                    kind="stalled",
                    host=member.host.name,
                    hint="look at its disk, then run this again",
                ),
            )
            member.cancel.set()
            self._locked(member.host.name)
            self._maybe_go()

    def _maybe_over(self) -> None:
        if self._chain is not None and all(m.state in ("done", "shared", "out") for m in self.members.values()):
            self.end()

    def end(self) -> None:
        """Everything is where it can be: let the members go."""
        with self._lock:
            if self.over.is_set():
                return
            self.over.set()
            for name in self.members:
                self._locked(name)
            for member in self.members.values():
                member.tell(op="end")
            self.source.end()
        # one that died since it was done must not be waited for
        timer = threading.Timer(GOODBYE_SECONDS, self._hang_up)
        timer.daemon = True
        timer.start()

    def _hang_up(self) -> None:
        for member in self.members.values():
            member.cancel.set()

    def abort(self, error: FleetError) -> None:
        """Stop; whoever has no other reason gets this one."""
        with self._lock:
            for member in self.members.values():
                if member.state in ("starting", "ready", "receiving"):
                    member.fail(error.but(host=member.host.name))
            self.end()
