"""Coordinates the chain from the head: waits for all members, starts it, repairs it, passes on digests, ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from fleet.background import unattended
from fleet.best_effort import best_effort
from fleet.delivery import own_files
from fleet.delivery.chain.judge import HINTS, Judge, Verdict
from fleet.delivery.chain.member import Member, Outbox
from fleet.delivery.chain.order import SOURCE, Chain
from fleet.delivery.chain.source import Source
from fleet.delivery.conversation import packed, resolution
from fleet.delivery.manifest import Manifest
from fleet.errors import ConnectError, FleetError, HostFailed, Interrupted, PreflightError
from fleet.events import Emit, Event, Notice, Progress
from fleet.node.delivery.chain.link import link_token
from fleet.protocol.messages import chain
from fleet.protocol.messages.code import OwnFile
from fleet.transport.shell import stalled

TICK_SECONDS = 0.2
GOODBYE_SECONDS = 3.0
WHY_LENGTH = 200
CHANGED = "changed in the source while it was read"


class Coordinator:
    """Keeps the state of all members and decides which one sends to which. Its methods may be called from any thread.

    members: every host, in inventory order. every: seconds between their reports. limit: bytes a second that the source
    sends. locked: called with a host's name when no other host has to wait for its lock any more, as the host holds it
    or takes none; called with each name at the end. force, keep, hint: what to do with files that are the nodes' own;
    see transfer.Broadcast.

    cuts: the delays that lost hosts caused, see Broadcasted in answers/sync.py.
    """

    def __init__(
        self,
        members: Sequence[Member],
        manifest: Manifest,
        emit: Emit,
        source: Source,
        *,
        every: float = 0.2,
        limit: int | None = None,
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
        self._view, self.locked = emit, locked
        self._every, self._limit = every, limit
        self._consent, self._hint = (force, keep), hint
        self.lock = threading.RLock()
        self.chain: Chain | None = None  # None before _go()
        self.cuts: list[dict[str, str | float]] = []
        self._lost: dict[str, tuple[str, float, int]] = {}
        source.on_news, source.on_link = self._news, partial(self.broke, SOURCE)

    # -- members come and go -------------------------------------------------------------------------------
    def emit(self, event: Event) -> None:
        with best_effort("show the progress", Exception):  # an error in it must not end the coordinator
            self._view(event)

    def opened(self, member: Member, outbox: Outbox) -> None:
        with self.lock:
            member.outbox = outbox
            member.quiet.received()
            if self.over.is_set():
                member.send_order(op="end")

    def left(self, name: str, error: FleetError | None) -> None:
        """Records that a host's connection has ended or failed. error: why; None if it ended without one."""
        with self.lock:
            member = self.members[name]
            if member.state not in ("done", "shared", "out"):
                self.out(member, error or HostFailed("it ended early", host=name, kind="protocol"))
            elif not self.over.is_set():
                self._remove(name)
            self.maybe_go()

    def out(self, member: Member, error: FleetError) -> None:
        member.fail(error)
        self.emit(Progress(member.host.name, "out", 0))
        if self.chain is not None:
            if not isinstance(error, Interrupted):
                self.emit(Notice("warning", f"out of the chain: {error.message}", member.host.name))
            self._remove(member.host.name)
            self.maybe_over()

    def _remove(self, name: str) -> None:
        """Takes a host out of the chain, and orders its sender to send to the next one."""
        if self.chain is not None:
            self.chain.remove(name)
            self._give(name)

    # -- what the source reports ------------------------------------------------------------------------------
    def _news(self, digests: dict[int, str], changed: set[int]) -> None:
        with self.lock:
            for member in self.members.values():
                self.settle(member)
                if member.state == "receiving":
                    self._pass_on(member, digests, changed)

    def _pass_on(self, member: Member, digests: Mapping[int, str], changed: Iterable[int]) -> None:
        """Sends a member the digests that it lacks, and the files that it will not get because they changed."""
        if wanted := [[i, digest] for i, digest in digests.items() if member.lacks(i)]:
            member.send_order(op="digests", files=wanted)
        if failed := [[index, CHANGED] for index in changed]:
            member.send_order(op="fail", files=failed)

    def broke(self, sender: str, message: chain.Link) -> None:
        with self.lock:
            if self.chain is not None and not self.over.is_set():
                why = message["why"][:WHY_LENGTH]
                self.judged(self.judge.broke(sender, message["epoch"], message["kind"], why))

    # -- the chain -----------------------------------------------------------------------------------------
    def maybe_go(self) -> None:
        """Starts the chain once all members have answered. If one has refused, nothing is sent to any."""
        members = self.members.values()
        if self.chain is not None or self.over.is_set() or any(m.state == "starting" for m in members):
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
        self._go([m for m in members if m.state == "ready"])

    def settle(self, member: Member) -> None:
        """Sends a member the digests that it waits for, once all are known. Leaves out files that have changed."""
        if member.unsure and not self.source.ask(member.unsure):
            digests = self.source.digests
            self.answer(member, packed([(i, digests[i]) for i in member.unsure if i in digests]))
            member.unsure = []

    def consent(self, member: Member, files: list[OwnFile]) -> None:
        """Sends a member the decision about its own files that are in the way. If the user has to decide, the member is
        out of the chain, and no files are sent to any member."""
        answer = resolution(files, *self._consent)
        if answer is None:
            self.out(member, own_files.error(member.host.name, files, self._hint))
            self.maybe_go()
        else:
            self.answer(member, answer)

    def answer(self, member: Member, answer: bytes) -> None:
        """Sends a member the answer that it waits for. Its time without progress counts from here."""
        member.quiet.received()
        if member.outbox is not None:
            member.outbox.put(answer)

    def _go(self, ready: list[Member]) -> None:
        lacking = [m for m in ready if any(True for _ in m.lacking())]
        for member in ready:
            member.state = "receiving"
            member.quiet.received()
            member.send_order(op="go")
            self._pass_on(member, self.source.digests, self.source.changed)
        self.chain = Chain([(m.host.name, m.need["bytes"]) for m in lacking], time.monotonic(), self._limit)
        self.judge = Judge(self.chain, self._every, self._limit is not None, self.source.name)
        self._give()
        self.source.ask(i for m in lacking for i in m.lacking())
        self.maybe_over()

    def judged(self, verdicts: Sequence[Verdict]) -> None:
        """Carries out verdicts about members, and emits them as events."""
        for verdict in verdicts:
            member, name = self.members[verdict.name], verdict.name
            if verdict.action == "out" and member.state == "receiving":
                gone = ConnectError if verdict.kind in ("dead", "lost", "unreachable") else HostFailed
                kind = "lost" if verdict.kind == "dead" else verdict.kind
                self.out(member, gone(verdict.reason, hint=HINTS[verdict.kind], host=name, kind=kind))
                member.cancel.set()
            elif verdict.action == "aside" and member.state != "done":
                self.emit(Progress(name, "away", member.received, member.need["bytes"]))
                self.emit(Notice("warning", f"{verdict.reason}: the others go on without it", name))
            elif verdict.action == "direct":
                text = f"gets its files from {self.source.name} from here on: {verdict.reason}"
                self.emit(Notice("info", text, name))
            elif verdict.action == "last" and verdict.kind != "trial":
                self.emit(Notice("warning", f"goes to the end of the chain: {verdict.reason}", name))
            self._give(None if verdict.kind == "trial" else name)
        if not verdicts:
            self._give()

    def _give(self, gone: str | None = None) -> None:
        """Sends an order to each sender that has a new receiver. gone: the host that caused the change."""
        assert self.chain is not None
        for order in self.chain.orders():
            receiver, hop = self.members[order.receiver], self.chain.hops[order.receiver]
            if gone not in (None, order.receiver):
                self._lost[order.receiver] = (str(gone), hop.grown, hop.received)
            if order.sender == SOURCE:
                self.source.serve(receiver, order.epoch)
            else:
                token = link_token(receiver.token, order.epoch)
                addresses = receiver.addresses
                self.members[order.sender].send_order(op="next", epoch=order.epoch, token=token, addresses=addresses)

    def tick(self) -> None:
        with self.lock:
            for member in list(self.members.values()):
                self._watch(member)
            if self.chain is not None and not self.over.is_set():
                now = time.monotonic()
                self.chain.sent(SOURCE, self.source.sent, now)
                self.judged(self.judge.tick(now))

    def _watch(self, member: Member) -> None:
        """Gives up a member that sends heartbeats and no progress, so that it does not hold up the others."""
        limit, seconds = member.limit, member.quiet.seconds()
        if limit is not None and seconds > limit:
            self.out(member, stalled(member.host.name, seconds))
            member.cancel.set()
            self.locked(member.host.name)
            self.maybe_go()

    def maybe_over(self) -> None:
        if self.chain is not None and all(m.state in ("done", "shared", "out") for m in self.members.values()):
            self.end()

    def end(self) -> None:
        """Ends the transfer: sends each member "end", and hangs up after GOODBYE_SECONDS."""
        with self.lock:
            if self.over.is_set():
                return
            self.over.set()
            for name in self.members:
                self.locked(name)
            for member in self.members.values():
                member.send_order(op="end")
            self.source.end()
        unattended("goodbye", self._hang_up)

    def _hang_up(self) -> None:
        time.sleep(GOODBYE_SECONDS)  # a member may have died after it was done, and would not answer
        for member in self.members.values():
            member.cancel.set()

    def abort(self, error: FleetError) -> None:
        """Ends the transfer with an error for each member that is not done and has none yet."""
        with self.lock:
            for member in self.members.values():
                if member.state in ("starting", "ready", "receiving"):
                    member.fail(error.but(host=member.host.name))
            self.end()
