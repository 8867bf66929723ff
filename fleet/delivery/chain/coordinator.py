"""What the head does while members talk: waits for all, starts the chain, mends it, passes digests on, ends it."""

from __future__ import annotations

import contextlib
import posixpath
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fleet.delivery import own_files
from fleet.delivery.chain.member import Member, Outbox
from fleet.delivery.chain.order import HERE, SOURCE
from fleet.delivery.chain.source import Source
from fleet.delivery.chain.steering import Serve, Steering
from fleet.delivery.manifest import Manifest
from fleet.errors import FleetError, HostFailed, Interrupted, PreflightError
from fleet.events import Emit, Event, Notice, Progress
from fleet.protocol.messages import chain
from fleet.protocol.messages.chain import MemberMessage
from fleet.transport.frames import decoded
from fleet.transport.shell import stalled

TICK_SECONDS = 0.2
GOODBYE_SECONDS = 3.0
CHANGED = "changed in the source while it was read"


class Coordinator:
    """members: every host, in inventory order. handlers: what each message of a member does, see handlers.py. serve,
    every, limit, named: see steering.Steering.
    locked: called with each host that holds its lock, or has none to take. force, keep, hint: of what is the nodes'
    own; see transfer.Broadcast.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        members: Sequence[Member],
        manifest: Manifest,
        emit: Emit,
        source: Source,
        serve: Serve,
        *,
        handlers: Mapping[str, Callable[[Coordinator, Member, Any], None]],
        every: float = 0.2,
        limit: int | None = None,
        named: str = HERE,
        locked: Callable[[str], None] = lambda name: None,
        force: bool | Sequence[str] = False,
        keep: bool = False,
        hint: str = "",
    ) -> None:
        self.members = {member.host.name: member for member in members}
        self.manifest = manifest
        self.over = threading.Event()
        self.source = source
        for member in members:
            member.work = manifest.size
        self._handlers = handlers
        self._view, self._serve, self.locked = emit, serve, locked
        self._pace = every, limit, named
        self._consent, self._hint = (force, keep), hint
        self._lock = threading.RLock()
        self.steering: Steering | None = None
        source.on_news, source.on_link = self._news, partial(self.broke, SOURCE)

    @property
    def sent(self) -> int:
        """Bytes that left the source."""
        return self.source.sent

    @property
    def cuts(self) -> list[dict[str, str | float]]:
        return self.steering.cuts if self.steering else []

    # -- members come and go -------------------------------------------------------------------------------
    def emit(self, event: Event) -> None:
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
            self.locked(name)
            if member.state not in ("done", "shared", "out"):
                self.out(member, error or HostFailed("it ended early", host=name, kind="protocol"))
            elif self.steering is not None and not self.over.is_set():
                self.steering.remove(name)
            self.maybe_go()

    def out(self, member: Member, error: FleetError) -> None:
        member.fail(error)
        self.emit(Progress(member.host.name, "out", 0))
        if self.steering is not None:
            if not isinstance(error, Interrupted):
                self.emit(Notice("warning", f"out of the chain: {error.message}", member.host.name, error.hint))
            self.steering.remove(member.host.name)
            self.maybe_over()

    # -- what members say ----------------------------------------------------------------------------------
    def handle(self, name: str, message: Mapping[str, Any]) -> None:
        """What a member said; ProtocolError for what none of them says."""
        with self._lock:
            checked = decoded(MemberMessage, message, name)
            self._handlers[checked["event"]](self, self.members[name], checked)

    # -- what the source says ------------------------------------------------------------------------------
    def _news(self, digests: dict[int, str], changed: set[int]) -> None:
        with self._lock:
            self.maybe_go()
            for member in self.members.values():
                if member.state == "receiving":
                    self._pass_on(member, digests, changed)

    def _pass_on(self, member: Member, digests: Mapping[int, str], changed: Iterable[int]) -> None:
        """Give a member those digests that it needs; tell it what it will not get."""
        if wanted := [[i, digest] for i, digest in digests.items() if member.lacks(i)]:
            member.tell(op="digests", files=wanted)
        if failed := [[index, CHANGED] for index in changed]:
            member.tell(op="fail", files=failed)

    def broke(self, sender: str, message: chain.Link) -> None:
        with self._lock:
            if self.steering is not None and not self.over.is_set():
                self.steering.link_broke(sender, message)

    # -- the chain -----------------------------------------------------------------------------------------
    def maybe_go(self) -> None:
        """Start once everybody has answered, and the files that some are unsure of are known."""
        members = self.members.values()
        if self.steering is not None or self.over.is_set() or any(m.state == "starting" for m in members):
            return
        refused = [m for m in members if isinstance(m.error, HostFailed | PreflightError)]
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
        for member in ready:
            member.settle(self.source.digests, self.manifest)
            member.consent(*self._consent, self.manifest)
            if len(member.replaces) + len(member.keeps) < len(member.own):
                self._refuse(member)
        if all(m.state == "ready" for m in ready):
            self._go(ready)
        else:
            self.maybe_go()

    def _refuse(self, member: Member) -> None:
        """What is the node's own is in the way."""
        left = {*member.replaces, *member.keeps}
        files = [
            (path or posixpath.basename(member.dests[at]), kind, size, age, holds)
            for at, path, kind, size, age, holds in member.own
            if (at, path) not in left
        ]
        self.out(member, own_files.error(member.host.name, files, self._hint))

    def _go(self, ready: list[Member]) -> None:
        lacking = [m for m in ready if any(True for _ in m.lacking())]
        for member in ready:
            member.state = "receiving"
            member.quiet.word()
            member.tell(op="go", held=sorted(member.held), replace=member.replaces, keep=member.keeps)
            self._pass_on(member, self.source.digests, self.source.changed)
        self.steering = Steering(lacking, self.emit, self._serve, self._give_up, *self._pace)
        self.source.ask(i for m in lacking for i in m.lacking())
        self.maybe_over()

    def _give_up(self, member: Member, error: FleetError) -> None:
        if member.state == "receiving":
            self.out(member, error)
            member.cancel.set()

    def tick(self) -> None:
        with self._lock:
            for member in list(self.members.values()):
                self._watch(member)
            if self.steering is not None and not self.over.is_set():
                self.steering.tick(self.source.sent)

    def _watch(self, member: Member) -> None:
        """A node that only says that it lives, and never what it has got to, holds nobody up for ever."""
        limit, seconds = member.limit, member.quiet.seconds()
        if limit is not None and seconds > limit:
            self.out(member, stalled(member.host.name, seconds))
            member.cancel.set()
            self.locked(member.host.name)
            self.maybe_go()

    def maybe_over(self) -> None:
        if self.steering is not None and all(m.state in ("done", "shared", "out") for m in self.members.values()):
            self.end()

    def end(self) -> None:
        """Everything is where it can be: let the members go."""
        with self._lock:
            if self.over.is_set():
                return
            self.over.set()
            for name in self.members:
                self.locked(name)
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
