"""What the head does while members talk: waits for all of them, starts the chain, passes digests on, ends it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet.delivery.chain.member import Member, Outbox
from fleet.delivery.chain.order import SOURCE
from fleet.delivery.chain.source import Source
from fleet.delivery.chain.steering import Steering
from fleet.delivery.manifest import Manifest
from fleet.errors import ConnectError, FleetError, HostFailed, Interrupted, ProtocolError, Reason
from fleet.events import Emit, Event, Notice, Progress
from fleet.protocol.messages import chain
from fleet.protocol.messages.chain import MemberMessage, SourceMessage
from fleet.transport.frames import decoded

TICK_SECONDS = 0.2
GOODBYE_SECONDS = 3.0


class Coordinator:
    """members: every host, in inventory order. star: brings a member its files without a chain, in its own thread.
    reach, limited: see steering.Steering. locked: told of each host that holds its lock, or has none to take.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        members: Sequence[Member],
        manifest: Manifest,
        emit: Emit,
        reach: Callable[[Member], list[list[Any]]],
        star: Callable[[Member], None] | None = None,
        limited: bool = False,
        locked: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.members = {member.host.name: member for member in members}
        self.manifest = manifest
        self.over = threading.Event()
        self.sent = 0
        self.source = Source()
        for member in members:
            member.work = manifest.size
        self._view, self._star, self._reach, self._limited, self._locked = emit, star, reach, limited, locked
        self._lock = threading.RLock()
        self._steering: Steering | None = None
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
        self._of_source: dict[str, Callable[[Any], None]] = {
            "digests": self._source_digests,
            "changed": self._source_changed,
            "link": self._source_link,
            "at": self._source_at,
            "failed": self._source_failed,
        }

    # -- members come and go -------------------------------------------------------------------------------
    def _emit(self, event: Event) -> None:
        with contextlib.suppress(Exception):  # a view that fails must not leave the nodes without their coordinator
            self._view(event)

    def source_opened(self, outbox: Outbox) -> None:
        with self._lock:
            self.source.outbox = outbox
            if self.over.is_set():
                self.source.tell(op="end")
                return
            outbox.put(self.manifest.message)
            self._maybe_go()

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
            elif self._steering is not None and not self.over.is_set():
                self._steering.remove(name)
            self._maybe_go()

    def _out(self, member: Member, error: FleetError) -> None:
        member.fail(error)
        self._emit(Progress(member.host.name, "out", 0))
        if self._steering is not None:
            if not isinstance(error, Interrupted):
                self._emit(Notice("warning", f"out of the chain: {error.message}", member.host.name, error.hint))
            self._steering.remove(member.host.name)
            self._maybe_over()

    # -- what members say ----------------------------------------------------------------------------------
    def handle(self, name: str, message: Mapping[str, Any]) -> None:
        """What a member or the source said; ProtocolError for what none of them says."""
        with self._lock:
            if name == SOURCE:
                said = decoded(SourceMessage, message, name)
                self._of_source.get(said["event"], self._ignore)(said)
            else:
                told = decoded(MemberMessage, message, name)
                self._of_member.get(told["event"], self._ignore)(self.members[name], told)

    def _ignore(self, *_: object) -> None:
        """An event that says nothing to the head."""

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
        if self._steering is not None and member.state in ("receiving", "done"):
            received, placed = message["received"], message["placed"]
            if received > member.received or len(self.manifest.files) >= placed > member.placed:
                member.quiet.word()
            member.received, member.placed = max(received, member.received), max(placed, member.placed)
            state = "done" if member.state == "done" else "receiving"
            self._emit(Progress(member.host.name, state, member.received, member.need["bytes"]))
            self._steering.heard(member.host.name, message)

    def _link(self, member: Member, message: chain.Link) -> None:
        if self._steering is not None:
            self._steering.link_broke(member.host.name, message)

    def _corrupt(self, member: Member, message: chain.Corrupt) -> None:
        if self._steering is not None and member.state == "receiving":
            if not member.lacks(message["file"]):
                raise ProtocolError("a file is wrong that it has", member.host.name)
            if message["file"] not in self.source.changed:
                self._steering.corrupt(member, message["file"], message["epoch"])

    def _done(self, member: Member, message: chain.Done) -> None:
        if self._steering is None or member.state != "receiving":
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
        self._steering.chain.done(member.host.name)
        self._maybe_over()

    # -- what the source says ------------------------------------------------------------------------------
    def _source_digests(self, message: chain.Digests) -> None:
        fresh = self.source.learn(message)
        self._maybe_go()
        for member in self._receiving():
            self.source.pass_on(member, fresh)

    def _source_changed(self, message: chain.Changed) -> None:
        fresh = set(message["files"])
        self.source.changed |= fresh
        self._maybe_go()
        for member in self._receiving():
            self.source.warn(member, fresh)

    def _receiving(self) -> list[Member]:
        return [member for member in self.members.values() if member.state == "receiving"]

    def _source_link(self, message: chain.Link) -> None:
        if self._steering is not None:
            self._steering.link_broke(SOURCE, message)

    def _source_at(self, message: chain.Sent) -> None:
        if self._star is None:
            self.sent = message["sent"]
        if self._steering is not None:
            self._steering.sent(SOURCE, message["sent"])

    def _source_failed(self, message: chain.Refused) -> None:
        self.abort(HostFailed(f"the source: {message['message']}", hint=message["hint"], kind="source"))

    # -- the chain -----------------------------------------------------------------------------------------
    def _maybe_go(self) -> None:
        """Start once everybody has answered, and the files that some are unsure of are known."""
        members = self.members.values()
        if self._steering is not None or self.over.is_set() or any(m.state == "starting" for m in members):
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
        if ready and (self.source.outbox is None or self.source.ask(i for m in ready for i in m.need["unsure"])):
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
            self.source.pass_on(member, self.source.digests)
            self.source.warn(member, self.source.changed)
        chained = [] if self._star else lacking
        self._steering = Steering(chained, self.source, self._emit, self._give_up, self._reach, self._limited)
        for member in lacking if self._star else ():
            threading.Thread(target=self._star, args=(member,), daemon=True).start()
        self.source.ask(i for m in lacking for i in m.lacking())
        self._maybe_over()

    def staged(self, name: str, count: int) -> None:
        """A member has everything without a chain; it took this many bytes."""
        with self._lock:
            self.sent += count
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

    @property
    def cuts(self) -> list[dict[str, str | float]]:
        """What the loss of a host cost the one behind it; see losses.Losses."""
        return self._steering.losses.known if self._steering else []

    def tick(self) -> None:
        with self._lock:
            for member in list(self.members.values()):
                self._watch(member)
            if self._steering is not None and not self.over.is_set():
                self._steering.tick()

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
        if self._steering and all(m.state in ("done", "shared", "out") for m in self.members.values()):
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
            self.source.tell(op="end")
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
