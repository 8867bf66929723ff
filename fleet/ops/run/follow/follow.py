"""Follows one node of a run in a thread of its own: logs into files, what happens into a queue, over lost connections.

The thread never gives up by itself: it reconnects and goes on at the files' sizes until the run's end is here
with the last byte, or until `give_up` is called. `silent_since` shows the launch's loop when to do that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from fleet.errors import ConnectError, FleetError, ProtocolError, Silent
from fleet.events import Emit, Output, silent
from fleet.model import Host
from fleet.node.base.clock import CLOCK, Clock
from fleet.ops.run.kept.logs import NodeLogs, stream_of
from fleet.protocol.frames import MESSAGE, OUTPUT
from fleet.protocol.messages.run import Followed, FollowSpec, Verdict
from fleet.protocol.state import NODE_LOG
from fleet.rules.advice import ADVICE
from fleet.transport.base import Cancel, Session, Transport
from fleet.transport.frames import Frame
from fleet.transport.program import Program

RETRY_SECONDS, SELDOM_SECONDS = 0.5, 60.0
FULL_RETRY_SECONDS = 2.0
SILENCE_SECONDS = 45.0  # of one that only fetches logs: a third of it ends a connection
FULL_PATIENCE_SECONDS = 10.0
NONSENSE_LIMIT = 3
HEARTBEAT_MOST, PING_MOST, REPORT_SECONDS = 2.0, 10.0, 1.0
# 64 ranks that were restarted 100 times report a third of it after a lost connection
TOLD_BYTES, TOLD_A_SECOND, LINE_BYTES = 4 << 20, 1 << 16, 200


@dataclass(frozen=True)
class Heard:
    """Holds what the thread reports to the loop. what: "message" (data: a protocol.messages.run.News), "dropped" (why),
    "resumed", "blocked" (why), "unblocked", "advice" (of rules.advice: a line in the logs shows it), "broken" (the host
    that answers there is not to be trusted: the error), "back" (it was started again: the program that did) or "over"
    (nothing more will come: an Over)."""

    host: str
    what: Literal["message", "dropped", "resumed", "blocked", "unblocked", "advice", "broken", "over", "back"]
    data: Any
    time: float


@dataclass(frozen=True)
class Over:
    """The end of following a node. complete: every byte of its logs is here. gaps: log -> bytes that the node no longer
    had."""

    complete: bool
    gaps: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Following:
    """Describes how a run's nodes are followed. spec: what is requested of each, but for its offsets. post: takes
    Heard, must not block. node_timeout: seconds. lease: the run's, to be renewed in time. keeps: its connection, once
    it is over. trims: nodes keep no more of the logs than they must, once the leader has them."""

    spec: FollowSpec
    transport: Transport
    post: Callable[[Heard], None] = lambda message: None
    emit: Emit = silent
    node_timeout: float = SILENCE_SECONDS
    lease: float | None = None
    keeps: bool = False
    trims: bool = False
    clock: Clock = CLOCK


def pause_after(seconds: float, least: float) -> float:
    """Before what has failed for so many seconds is tried again: hosts that are gone for days cost next to nothing, one
    that blinks is not waited for."""
    return min(SELDOM_SECONDS, max(least, seconds / 30))


class _Allowance:
    """How much a node may report of its run, besides its logs: what comes at once, and so much a second after that."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left, self._then = float(TOLD_BYTES), clock.monotonic()

    def spend(self, size: int) -> None:
        """ProtocolError when it reports more; each message counts as the line that it makes in events.jsonl."""
        now = self._clock.monotonic()
        self._left = min(TOLD_BYTES, self._left + (now - self._then) * TOLD_A_SECOND)
        self._then = now
        if size + LINE_BYTES > self._left:
            raise ProtocolError(f"it tells more than {TOLD_BYTES >> 20} MiB of its run at once")
        self._left -= size + LINE_BYTES


class _Restart(Exception):
    """Follow again over the same connection: the disk takes bytes again."""


class Follower(threading.Thread):
    """Follows one node. logs: its files. waiting: a program there, with run.follow after it, to start with."""

    def __init__(self, host: Host, logs: NodeLogs, how: Following, waiting: Program | None = None) -> None:
        super().__init__(name=f"follow {host.name}", daemon=True)
        self.host, self.logs, self._how, self._clock = host, logs, how, how.clock
        self.silent_since: float | None = None
        self.spoke = 0.0  # when a rank wrote its last, by the clock's monotonic()
        self.shut: FleetError | None = None  # who answers there does not let us in again
        self._waiting = waiting
        self.session: Session | None = waiting.session if waiting else None
        self._silence = max(1.0, how.node_timeout / 3)
        self._cancel = Cancel()
        self._program: Program | None = None
        self._request: dict[str, Any] | None = None
        self._sizes: dict[str, int] | None = None
        self._nonsense = 0
        self._allowance = _Allowance(how.clock)
        self._reported = 0.0
        self._advice = set(ADVICE)
        # of a run of many nodes that reports nothing, heartbeats and pings, which renew the lease, are all there is to
        # do
        self._ping = min(PING_MOST, (how.lease or inf) / 4)
        self._beat = min(HEARTBEAT_MOST, self._silence / 2.5)

    def stop(self, grace: float, end: Verdict | None, *, interrupt: bool = False) -> None:
        """Have the run stopped on this node, now or as soon as it can be reached again. interrupt: ranks get SIGINT
        first, as by Ctrl-C in a terminal."""
        message = end and end["message"]
        self._ask({"op": "stop", "grace": grace, "reason": message, "end": end, "interrupt": interrupt})

    def detach(self) -> None:
        """Have the run go on without a head on this node, now or as soon as it can be reached again."""
        self._ask({"op": "detach"})

    def _ask(self, request: dict[str, Any]) -> None:
        self._request = request
        self.send(request)

    def send(self, request: dict[str, Any]) -> None:
        """Requests something of the node now, where it can be reached; see node/run/follow.py."""
        if (program := self._program) is not None:
            program.send(request)

    def give_up(self) -> None:
        """End the thread soon, whatever it waits for."""
        self._cancel.set()
        if (program := self._program) is not None:
            program.send_eof()

    def run(self) -> None:
        try:
            while self._sizes is None and not self._cancel.is_set():
                self._once()
        finally:
            complete = self._sizes is not None and self._sizes == {
                name: size for name, size in self.logs.sizes().items() if name in self._sizes
            }
            self.tell("over", Over(complete, self.logs.gaps))
            if self._sizes is None or not self._how.keeps:
                self.drop()

    def take(self) -> Session | None:
        """Hand over its connection, where it has one."""
        session, self.session = self.session, None
        return session

    def drop(self) -> None:
        """Close its connection."""
        if session := self.take():
            session.close()

    def tell(self, what: Any, data: object = None) -> None:
        self._how.post(Heard(self.host.name, what, data, self._clock.time()))

    def _once(self) -> None:
        """Connect if need be, follow until the end or until something breaks."""
        try:
            if self.session is None:
                self.session = self._how.transport.connect(self.host, self._cancel)
            self._follow(self.session)
        except _Restart:
            self.tell("unblocked")
        except FleetError as error:
            self.shut = error if error.kind in ("refused", "auth") else None
            self._nonsense += isinstance(error, ProtocolError)
            stranger = error.kind == "host-key"  # no wait makes it the right one
            if (stranger or self._nonsense >= NONSENSE_LIMIT) and not self._cancel.is_set():
                hint = "something there breaks fleet's programs"
                self.tell(
                    "broken", error if stranger else ConnectError(f"given up: {error}", kind="protocol", hint=hint)
                )
                self.give_up()
            if self.silent_since is None and not self._cancel.is_set():
                self.silent_since = self._clock.monotonic() - (self._silence if isinstance(error, Silent) else 0.0)
                self.tell("dropped", error.message)
            self.drop()
            silent = self._clock.monotonic() - (self.silent_since or inf)
            self._clock.wait(self._cancel, pause_after(silent, RETRY_SECONDS))

    def _follow(self, session: Session) -> None:
        spec: FollowSpec = {**self._how.spec, "offsets": self.logs.sizes(), "heartbeat": self._beat}
        program, self._waiting = self._waiting, None
        if program is None:
            program = Program(session, "run.follow", spec)
        else:
            program.go_on(spec)
        with program:
            self._program = program
            try:
                if self._request is not None:
                    program.send(self._request)
                self._frames(program)
            finally:
                self._program = None

    def _frames(self, program: Program) -> None:
        streams: dict[int, tuple[str, int]] = {}
        full_since = looked = self._clock.monotonic()
        poll = min(self._beat, self._ping)
        # a node that would answer in time is not cut off before: the next try begins python again
        silence, first = self._silence, 2 * self._silence
        for frame in program.frames(silence=silence, first=first, cancel=self._cancel, poll=poll, ping=self._ping):
            if self._cancel.is_set():  # the caller that gave this up may let another one write these files
                return
            if self.silent_since is not None:
                self.silent_since = None
                self.tell("resumed")
            if frame.kind == OUTPUT:
                self._write(streams, frame)
            elif frame.kind == MESSAGE:
                self._allowance.spend(len(frame.payload))
                self._message(streams, frame.decode(Followed))
            now = self._clock.monotonic()
            if self._how.trims and self._how.spec.get("term") and now - self._reported >= REPORT_SECONDS:
                self._reported = now
                program.send({"op": "have", "sizes": self.logs.sizes()})
            if self.logs.blocked is None:
                full_since = looked = now
            elif now - looked >= FULL_RETRY_SECONDS:
                looked = now
                if self.logs.try_again():
                    raise _Restart
        while self.logs.blocked and self._clock.monotonic() - full_since < FULL_PATIENCE_SECONDS:
            # the run is over and its last bytes wait on the node for room here
            if self.logs.try_again():
                self._sizes = None
                raise _Restart
            self._clock.wait(self._cancel, RETRY_SECONDS)

    def _write(self, streams: dict[int, tuple[str, int]], frame: Frame) -> None:
        if frame.stream not in streams:
            raise ProtocolError("output of a stream that was not announced", self.host.name)
        name, offset = streams[frame.stream]
        if name != NODE_LOG:
            self.spoke = self._clock.monotonic()
        streams[frame.stream] = name, offset + len(frame.payload)
        was_blocked = self.logs.blocked
        fresh = self.logs.write(name, offset, frame.payload)
        if self.logs.blocked and not was_blocked:
            self.tell("blocked", self.logs.blocked)
        if fresh:
            for advice in [advice for advice in self._advice if advice.sign in fresh]:
                self._advice.discard(advice)
                self.tell("advice", advice)
            rank, stream = stream_of(name)
            self._how.emit(Output(self.host.name, "stdout" if stream == "stdout" else "stderr", fresh, rank))

    def _message(self, streams: dict[int, tuple[str, int]], message: Followed) -> None:
        if message["event"] == "stream":
            streams[message["id"]] = message["name"], message["offset"]
            if self._how.trims:
                self.logs.skip(message["name"], message["offset"])
            self.logs.write(message["name"], message["offset"], b"")
        elif message["event"] == "end":
            self._sizes = message["sizes"]
        else:
            if message["event"] == "failed":  # no such run there: nothing to wait for
                self._sizes = {}
            self.tell("message", message)
