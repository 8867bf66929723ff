"""Follows one node of a run in a thread of its own: writes its logs to files, and posts its messages to the loop.

After a lost connection the thread connects again, and fetches the bytes that its files lack. The thread ends when it
has all bytes of the node's logs, when give_up() is called, or after an error that no retry can mend ("broken").
`silent_since` shows the loop since when the thread has received nothing.
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
from fleet.protocol.messages.run import Followed, Verdict
from fleet.protocol.messages.run_specs import FollowSpec
from fleet.protocol.state import METRICS, NODE_LOG
from fleet.rules.advice import ADVICE
from fleet.transport.base import Cancel, Session, Transport
from fleet.transport.frames import Frame
from fleet.transport.program import Program

RETRY_SECONDS, SELDOM_SECONDS = 0.5, 60.0  # the shortest and the longest pause before a retry
FULL_RETRY_SECONDS = 2.0  # between two tries to write to a full disk of the head
SILENCE_SECONDS = 45.0  # default of node_timeout; a connection ends after a third of it without a byte
FULL_PATIENCE_SECONDS = 10.0  # so long the last bytes of a run wait for room on the head's disk
PROTOCOL_ERRORS_LIMIT = 3
HEARTBEAT_MOST, PING_MOST, REPORT_SECONDS = 2.0, 10.0, 1.0  # between heartbeats, pings, and reports of log sizes
# ALLOWED_BYTES: three times what 64 ranks with 100 restarts each report after a lost connection
ALLOWED_BYTES, ALLOWED_A_SECOND, LINE_BYTES = 4 << 20, 1 << 16, 200


@dataclass(frozen=True)
class FollowEvent:
    """Holds an event that is posted to the loop. time: seconds since the epoch, by the head's clock.

    kind: one of the following; `data` is in brackets. "message", the node sent one (protocol.messages.run.News);
    "dropped", the connection was lost (why); "resumed"; "blocked", the head's disk takes no log bytes (why);
    "unblocked"; "advice", a line in the logs calls for advice (the entry of rules.advice); "broken", the host that
    answers cannot be trusted (the error); "back", the node's part was started again (the program that did it); "over",
    nothing more will come (FollowEnd)."""

    host: str
    kind: Literal["message", "dropped", "resumed", "blocked", "unblocked", "advice", "broken", "over", "back"]
    data: Any
    time: float


@dataclass(frozen=True)
class FollowEnd:
    """Describes the end of following a node. complete: the head has all bytes of the logs, by the sizes that the node
    reported. gaps: log -> number of bytes that the node no longer had. blocked: why the head's disk takes no bytes.
    why: the last cause of a lost connection, or that the node has no such run. is_there: the node has the run, and can
    read its folder."""

    complete: bool
    gaps: Mapping[str, int] = field(default_factory=dict)
    blocked: str | None = None
    why: str | None = None
    is_there: bool = True


@dataclass(frozen=True)
class FollowOptions:
    """Describes how a run's nodes are followed. spec: the input of the node program run.follow, without offsets. post:
    receives each event; it must not block.

    node_timeout: seconds. lease: seconds that the run goes on without a head; pings renew it in time. keeps: after the
    end, the connection stays open for take(). trims: nodes may discard log bytes that the head has."""

    spec: FollowSpec
    transport: Transport
    post: Callable[[FollowEvent], None] = lambda message: None
    emit: Emit = silent
    node_timeout: float = SILENCE_SECONDS
    lease: float | None = None
    keeps: bool = False
    trims: bool = False
    clock: Clock = CLOCK


def pause_after(seconds: float, least: float) -> float:
    """Returns the seconds to wait before a retry, at least `least`. seconds: how long retries have failed so far. The
    pause grows with that time, so that a host which is gone for days costs next to nothing."""
    return min(SELDOM_SECONDS, max(least, seconds / 30))


class _Allowance:
    """Limits the bytes of messages that a node may report: ALLOWED_BYTES at once, and ALLOWED_A_SECOND after that."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left, self._then = float(ALLOWED_BYTES), clock.monotonic()

    def spend(self, size: int) -> None:
        """Subtracts a message of `size` bytes from the allowance, and LINE_BYTES for its line in events.jsonl. Raises
        ProtocolError if the allowance is too small."""
        now = self._clock.monotonic()
        self._left = min(ALLOWED_BYTES, self._left + (now - self._then) * ALLOWED_A_SECOND)
        self._then = now
        if size + LINE_BYTES > self._left:
            raise ProtocolError(f"it reports more than {ALLOWED_BYTES >> 20} MiB of its run at once")
        self._left -= size + LINE_BYTES


class Follower(threading.Thread):
    """Follows one node. logs: its logs on the head. waiting: a program on the node that waits to start run.follow.

    silent_since: since when no frame was received, by the clock's monotonic(); None while frames arrive."""

    def __init__(self, host: Host, logs: NodeLogs, how: FollowOptions, waiting: Program | None = None) -> None:
        super().__init__(name=f"follow {host.name}", daemon=True)
        self.host, self.logs, self._how, self._clock = host, logs, how, how.clock
        self.silent_since: float | None = None
        self.last_output_at = 0.0  # time of a rank's last output, by the clock's monotonic()
        self.refusal: FleetError | None = None  # why the host refused the last connection or login
        self._waiting = waiting
        self.session: Session | None = waiting.session if waiting else None
        self._silence = max(1.0, how.node_timeout / 3)
        self._cancel = Cancel()
        self._program: Program | None = None
        self._request: dict[str, Any] | None = None
        self._is_over, self._is_there = False, True  # the node sends no more; the node has the run
        self._why: str | None = None  # see FollowEnd.why
        self._sizes: dict[str, int] | None = None  # sizes of its logs, once the node has sent all
        self._protocol_errors = 0
        self._allowance = _Allowance(how.clock)
        self._reported = 0.0
        self._advice = set(ADVICE)
        # as seldom as the timeouts allow: in a quiet run of many nodes, heartbeats and pings are all the head's work
        self._ping = min(PING_MOST, (how.lease or inf) / 4)
        self._beat = min(HEARTBEAT_MOST, self._silence / 2.5)

    def stop(self, grace: float, end: Verdict | None, *, interrupt: bool = False) -> None:
        """Requests that the node stops its part, now or as soon as it can be reached again. grace: seconds before
        SIGKILL. end: the verdict with the reason. interrupt: ranks get SIGINT first, as by Ctrl-C in a terminal."""
        message = end and end["message"]
        self._ask({"op": "stop", "grace": grace, "reason": message, "end": end, "interrupt": interrupt})

    def detach(self) -> None:
        """Requests that the node goes on without a head, now or as soon as it can be reached again."""
        self._ask({"op": "detach"})

    def _ask(self, request: dict[str, Any]) -> None:
        self._request = request
        self.send(request)

    def send(self, request: dict[str, Any]) -> None:
        """Sends a request to node/run/follow.py on the node. Without a connection the request is lost."""
        if (program := self._program) is not None:
            program.send(request)

    def give_up(self) -> None:
        """Has the thread end soon, whatever it waits for."""
        self._cancel.set()
        if (program := self._program) is not None:
            program.send_eof()

    def run(self) -> None:
        try:
            while not self._is_over and not self._cancel.is_set():
                self._once()
        finally:
            here = self.logs.sizes()
            complete = self._sizes is not None and all(here.get(name) == size for name, size in self._sizes.items())
            self.post("over", FollowEnd(complete, self.logs.gaps, self.logs.blocked, self._why, self._is_there))
            if not self._is_over or not self._how.keeps:
                self.drop()

    def take(self) -> Session | None:
        """Returns the open connection, or None. From then on the caller owns it, and closes it."""
        session, self.session = self.session, None
        return session

    def drop(self) -> None:
        """Closes the connection, if one is open."""
        if session := self.take():
            session.close()

    def post(self, kind: Any, data: object = None) -> None:
        self._how.post(FollowEvent(self.host.name, kind, data, self._clock.time()))

    def _once(self) -> None:
        """Connects if no connection is open. Follows the node until its part ends, or until an error; then pauses."""
        try:
            if self.session is None:
                self.session = self._how.transport.connect(self.host, self._cancel)
            self._follow(self.session)
        except FleetError as error:
            self.refusal = error if error.kind in ("refused", "auth") else None
            self._protocol_errors += isinstance(error, ProtocolError)
            stranger = error.kind == "host-key"  # a retry would find the same wrong key
            if (stranger or self._protocol_errors >= PROTOCOL_ERRORS_LIMIT) and not self._cancel.is_set():
                hint = "something there breaks fleet's programs"
                self.post(
                    "broken", error if stranger else ConnectError(f"given up: {error}", kind="protocol", hint=hint)
                )
                self.give_up()
            if self.silent_since is None and not self._cancel.is_set():
                self.silent_since = self._clock.monotonic() - (self._silence if isinstance(error, Silent) else 0.0)
                self._why = error.message
                self.post("dropped", self._why)
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
        # twice the time for the first byte: a busy node starts python slowly, and a retry would start it again
        silence, first = self._silence, 2 * self._silence
        for frame in program.frames(silence=silence, first=first, cancel=self._cancel, poll=poll, ping=self._ping):
            if self._cancel.is_set():  # after give_up() another follower may write these files
                return
            if self.silent_since is not None:
                self.silent_since = None
                self.post("resumed")
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
                if self._has_room():
                    return  # run() calls _once() again, which follows from the sizes of the files on
        while self.logs.blocked and self._clock.monotonic() - full_since < FULL_PATIENCE_SECONDS:
            # the run is over, and the node still has its last bytes: they wait until the head's disk has room
            if self._has_room():
                self._is_over, self._sizes = False, None
                return
            self._clock.wait(self._cancel, RETRY_SECONDS)

    def _has_room(self) -> bool:
        if has_room := self.logs.try_again():
            self.post("unblocked")
        return has_room

    def _write(self, streams: dict[int, tuple[str, int]], frame: Frame) -> None:
        if frame.stream not in streams:
            raise ProtocolError("output of a stream that was not announced", self.host.name)
        name, offset = streams[frame.stream]
        if name not in (NODE_LOG, METRICS):
            self.last_output_at = self._clock.monotonic()
        streams[frame.stream] = name, offset + len(frame.payload)
        was_blocked = self.logs.blocked
        fresh = self.logs.write(name, offset, frame.payload)
        if self.logs.blocked and not was_blocked:
            self.post("blocked", self.logs.blocked)
        if fresh and name != METRICS:
            for advice in [advice for advice in self._advice if advice.sign in fresh]:
                self._advice.discard(advice)
                self.post("advice", advice)
            rank, stream = stream_of(name)
            self._how.emit(Output(self.host.name, "stdout" if stream == "stdout" else "stderr", fresh, rank))

    def _message(self, streams: dict[int, tuple[str, int]], message: Followed) -> None:
        if message["event"] == "stream":
            streams[message["id"]] = message["name"], message["offset"]
            if self._how.trims:
                self.logs.skip(message["name"], message["offset"])
            self.logs.write(message["name"], message["offset"], b"")
        elif message["event"] == "end":
            self._is_over, self._sizes = True, message["sizes"]
        else:
            if message["event"] == "failed":  # the node has no such run, or cannot read its folder
                self._is_over, self._is_there, self._why = True, False, message["message"]
            self.post("message", message)
