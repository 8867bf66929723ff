"""How ranks, nodes and runs end, as values. Times are seconds since the epoch, by the clock of a node or the head."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fleet.errors import EXIT_CONNECT, EXIT_HOST_FAILED, EXIT_INTERRUPTED, EXIT_TIMEOUT, FleetError
from fleet.protocol.messages.run import TAIL_BYTES, EndedBy, RankEnded, RunState, Verdict

CLOCK_SECONDS = 600.0  # for which a message shows how a node's clock stands
SIGTERM = 15
INTERRUPTED = "interrupted"
BY: dict[str, EndedBy] = {"link": "lost", "node": "lost", "stalled": "stall", "lease": "lease"}  # else "failure"
BY_HAND = ("interrupt", "stop", "queue")  # the ends that are nobody's failure
# why a node ended its part by itself -> the exit code; see node/base/run_folder.py
OWN_CAUSES = {
    "lease": EXIT_TIMEOUT,
    "frozen": EXIT_CONNECT,
    "signal": EXIT_HOST_FAILED,
    "supervisor": EXIT_HOST_FAILED,
    "removed": EXIT_HOST_FAILED,
    "reboot": EXIT_CONNECT,
}


@dataclass
class Clock:
    """A node's clock against the head's: the smallest (received - sent) of the messages of late, latency included. In
    the days of a run two clocks drift apart by seconds.

    fastest: (received, received - sent) of those that no later one was faster than.
    """

    fastest: list[tuple[float, float]] = field(default_factory=list)

    def heard(self, node_time: float, head_time: float) -> None:
        delay = head_time - node_time
        kept = [it for it in self.fastest if it[0] > head_time - CLOCK_SECONDS and it[1] < delay]
        self.fastest = [*kept, (head_time, delay)]

    def on_head(self, node_time: float) -> float:
        return node_time + (self.fastest[0][1] if self.fastest else 0.0)


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended. status: exit code or None; signal: its number or None; time: on the node's clock. begins:
    bytes in its stdout's and stderr's logs that earlier attempts wrote. asked: it ended after a head, this one or
    another, had the run stopped; signalled: after its engine had it end. until: bytes in its stderr's log when SIGTERM
    came; None: it did not. What it wrote later is an answer, and no cause."""

    host: str
    node_rank: int
    rank: int
    local_rank: int | None
    status: int | None
    signal: int | None
    time: float
    attempt: int = 0
    begins: tuple[int, int] = (0, 0)
    asked: bool = False
    signalled: bool = False
    until: int | None = None

    @classmethod
    def of(cls, host: str, node_rank: int, message: RankEnded) -> RankEnd:
        """As a node reports it."""
        how = (message.get("local_rank"), message.get("status"), message.get("signal"), message.get("time", 0.0))
        begins, causes = message.get("begins") or (0, 0), (message.get("asked", False), message.get("signalled", False))
        rank, attempt, until = message["rank"], message.get("attempt", 0), message.get("until")
        return cls(host, node_rank, rank, *how, attempt, begins, *causes, until)

    @property
    def failed(self) -> bool:
        return bool(self.status) or self.signal is not None

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal is not None else (self.status or 0)


def run_end(by: EndedBy, message: str, code: int, host: str | None = None, who: str = "") -> Verdict:
    """Returns why a run is stopped, until it is decided how it ended."""
    return {
        "by": by,
        "host": host,
        "code": code,
        "who": who,
        "message": message[:TAIL_BYTES],
        "attempt": 0,
        "first": None,
        "unknown": [],
        "time": time.time(),
    }


def stopped_by(who: str) -> Verdict:
    """By 'fleet stop'. who: USER@HEAD."""
    return run_end("stop", f"stopped by {who}", EXIT_INTERRUPTED, who=who)


@dataclass(frozen=True)
class Failure:
    """The first thing that went wrong. rank None: the engine itself, or the node. what: "rank", "vanished", "engine",
    "node", "link" (all nodes at once), "stalled" (no rank writes any more), or one of OWN_CAUSES. tail: last words."""

    host: str
    node_rank: int
    exit_code: int
    time: float
    rank: int | None = None
    local_rank: int | None = None
    signal: int | None = None
    what: str = "rank"
    why: FleetError | None = None
    tail: str = ""

    @classmethod
    def of(cls, end: RankEnd, time: float) -> Failure:
        """Of a rank that failed."""
        return cls(end.host, end.node_rank, end.exit_code, time, end.rank, end.local_rank, end.signal)

    def reason(self, message: str) -> Verdict:
        """Returns the verdict of a run that ends because of it."""
        by, why = BY.get(self.what, "failure"), self.why
        by = "failure" if why is not None and why.kind == "ended" else by
        told = why and {"kind": why.kind, "message": why.message[:TAIL_BYTES], "hint": why.hint}
        first = {**vars(self), "why": told, "tail": self.tail[-TAIL_BYTES:]}
        end = run_end(by, message, self.exit_code or EXIT_HOST_FAILED, self.host)
        return {**end, "first": first}  # type: ignore[typeddict-item]


@dataclass
class NodeState:
    """What is known of one node. status: its supervisor's last report. lost: when it was last heard of
    (head's clock), once it was given up, and `why`. ended: all of its output is here, or never will be. Of an
    elastic run, up: how many ranks lived there, and when, on its clock; done: local ranks of which the last that
    ended did so with 0, by itself."""

    host: str
    node_rank: int
    clock: Clock = field(default_factory=Clock)
    ranks: dict[tuple[int, int], RankEnd] = field(default_factory=dict)
    status: RunState = field(default_factory=RunState)
    lost: float | None = None
    why: FleetError | None = None
    ended: bool = False
    up: tuple[int | None, float] = (None, 0.0)
    done: frozenset[int | None] = frozenset()

    @property
    def state(self) -> str:
        return self.status.get("state", "starting")

    @property
    def cause(self) -> str | None:
        """Why this node ended its part, where it did so by itself."""
        cause = self.status.get("cause")
        return cause if cause in OWN_CAUSES else None

    @property
    def began(self) -> float:
        """When this node began to end its part, on the head's clock; 0 where it has not reported it."""
        return self.clock.on_head(self.status.get("began") or self.status.get("time", 0.0))

    @property
    def engine_code(self) -> int:
        """What the engine's process came to: 128+n for a signal; 0 also while unknown."""
        signal = self.status.get("signal")
        return 128 + signal if signal else self.status.get("engine_status") or 0
