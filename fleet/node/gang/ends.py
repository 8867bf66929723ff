"""Defines values that describe how ranks, nodes and runs end. Times are seconds since the epoch, by the clock of a node
or of the run's leader."""

from typing import NamedTuple

from fleet.node.base.clock import CLOCK
from fleet.node.base.clock import Clock as Time
from fleet.node.base.types import Any, Iterable, Sequence, run
from fleet.protocol.codes import EXIT_CONNECT, EXIT_HOST_FAILED, EXIT_INTERRUPTED, EXIT_TIMEOUT

CLOCK_SECONDS = 600.0  # so long a message counts for the offset of a node's clock
TAIL_BYTES = 4096  # the longest text in a verdict
SIGTERM = 15
INTERRUPTED = "interrupted"
# `what` of a Failure -> `by` of its verdict; any other `what` -> "failure"
BY = {"link": "lost", "node": "lost", "stalled": "stall", "lease": "lease"}
BY_HAND = ("interrupt", "stop", "queue")  # values of "by" that are no failure
# causes for which a node ends its part by itself -> the exit code; see node/base/run_folder.py
OWN_CAUSES = {
    "lease": EXIT_TIMEOUT,
    "frozen": EXIT_CONNECT,
    "signal": EXIT_HOST_FAILED,
    "supervisor": EXIT_HOST_FAILED,
    "removed": EXIT_HOST_FAILED,
    "reboot": EXIT_CONNECT,
}


def ranks_text(ranks: "Iterable[int]") -> str:
    """Returns a text such as "rank 3" or "ranks 0-2,5"."""
    known = set(ranks)
    firsts = sorted(it for it in known if it - 1 not in known)
    lasts = sorted(it for it in known if it + 1 not in known)
    numbers = ",".join(str(a) if a == b else "%d-%d" % (a, b) for a, b in zip(firsts, lasts))
    return "rank%s %s" % ("s" * (len(known) > 1), numbers)


class Clock:
    """Estimates the offset between a node's clock and the leader's: the smallest (received - sent) of recent messages.
    This offset includes the latency. Older messages are ignored, as two clocks drift apart by seconds in some days.

    fastest: (received, received - sent) of each recent message after which no faster one came.
    """

    def __init__(self) -> None:
        self.fastest: list[tuple[float, float]] = []

    def receive(self, sent: float, received: float) -> None:
        delay = received - sent
        kept = [it for it in self.fastest if it[0] > received - CLOCK_SECONDS and it[1] < delay]
        self.fastest = [*kept, (received, delay)]

    def here(self, time: float) -> float:
        """Converts a time of the node to the leader's clock."""
        return time + (self.fastest[0][1] if self.fastest else 0.0)


class RankEnd(NamedTuple):
    """Describes how a rank ended. status: exit code or None. signal: its number or None. time: on the node's clock.
    begins: bytes in the rank's stdout and stderr logs that earlier attempts wrote. asked: the rank ended after any head
    had stopped the run. signalled: the rank ended after its engine had sent it a signal. until: bytes in its stderr log
    when SIGTERM came, None if no SIGTERM came. Output after these bytes is a consequence, not a cause."""

    host: str
    node_rank: int
    rank: int
    local_rank: "int | None"
    status: "int | None"
    signal: "int | None"
    time: float
    attempt: int = 0
    begins: "tuple[int, int]" = (0, 0)
    asked: bool = False
    signalled: bool = False
    until: "int | None" = None

    @classmethod
    def of(cls, host: str, node_rank: int, message: "run.RankEnded") -> "RankEnd":
        """Returns the RankEnd of a node's report."""
        return cls(
            host,
            node_rank,
            message["rank"],
            message.get("local_rank"),
            message.get("status"),
            message.get("signal"),
            message.get("time", 0.0),
            message.get("attempt", 0),
            message.get("begins") or (0, 0),
            message.get("asked", False),
            message.get("signalled", False),
            message.get("until"),
        )

    @property
    def failed(self) -> bool:
        return bool(self.status) or self.signal is not None

    @property
    def sentence(self) -> str:
        how = "exit code %s" % self.status if self.signal is None else "signal %d" % self.signal
        return "rank %d on %s (node rank %s) ended: %s" % (self.rank, self.host, self.node_rank, how)

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal is not None else (self.status or 0)


def run_end(
    by: str, message: str, code: int, host: "str | None" = None, who: str = "", clock: Time = CLOCK
) -> "run.Verdict":
    """Returns the preliminary verdict of a run that is being stopped. by, code, host, who: see Verdict in
    fleet/protocol/messages/run.py."""
    return {
        "by": by,  # type: ignore[typeddict-item]
        "host": host,
        "code": code,
        "who": who,
        "message": message[:TAIL_BYTES],
        "attempt": 0,
        "first": None,
        "unknown": [],
        "time": clock.time(),
    }


def stopped_by(who: str) -> "run.Verdict":
    """Returns the verdict for a run that 'fleet stop' ends. who: USER@HEAD."""
    return run_end("stop", "stopped by " + who, EXIT_INTERRUPTED, who=who)


class Failure(NamedTuple):
    """Describes a failure. time: on the leader's clock. rank: None if the engine or the node failed. what: "rank",
    "engine", "node", one of OWN_CAUSES, "vanished" (no end of the rank is known), "link" (all nodes were lost at once)
    or "stalled" (no rank writes any more). tail: the rank's last lines."""

    host: str
    node_rank: int
    exit_code: int
    time: float
    rank: "int | None" = None
    local_rank: "int | None" = None
    signal: "int | None" = None
    what: str = "rank"
    why: "run.Why | None" = None
    tail: str = ""

    @classmethod
    def of(cls, end: RankEnd, time: float) -> "Failure":
        """Returns the failure of a rank. time: of its end, on the leader's clock."""
        return cls(end.host, end.node_rank, end.exit_code, time, end.rank, end.local_rank, end.signal)

    @property
    def kind(self) -> "str | None":
        return self.why["kind"] if self.why is not None else None

    def reason(self, message: str) -> "run.Verdict":
        """Returns the verdict of a run that ends because of this failure."""
        by = "failure" if self.kind == "ended" else BY.get(self.what, "failure")
        why = self.why and dict(self.why, message=self.why["message"][:TAIL_BYTES])
        first = dict(self._asdict(), why=why, tail=self.tail[-TAIL_BYTES:])
        end: dict[str, Any] = dict(run_end(by, message, self.exit_code or EXIT_HOST_FAILED, self.host), first=first)
        return end  # type: ignore[return-value]


class NodeState:
    """Holds the facts about one node. ranks: the ranks that it has to run. ends: how its ranks ended, by (rank,
    attempt). status: its supervisor's last report. lost: None, or for a node that was given up the time of its last
    message (leader's clock); why: the reason. ended: all its output has come, or will never come. In an elastic run,
    up: how many of its ranks are alive, and the time of that count on its clock; done: the local ranks that last ended
    with exit code 0, and not by a signal of their engine."""

    def __init__(self, host: str, node_rank: int, ranks: "Sequence[int]" = ()) -> None:
        self.host, self.node_rank, self.ranks = host, node_rank, ranks
        self.clock = Clock()
        self.ends: dict[tuple[int, int], RankEnd] = {}
        self.status: run.RunState = {}
        self.lost: float | None = None
        self.why: run.Why | None = None
        self.ended = False
        self.up: tuple[int | None, float] = (None, 0.0)
        self.done: frozenset[int | None] = frozenset()

    @property
    def state(self) -> str:
        return self.status.get("state", "starting")

    @property
    def cause(self) -> "str | None":
        """Returns why this node ended its part by itself, or None if it did not."""
        cause = self.status.get("cause")
        return cause if cause in OWN_CAUSES else None

    @property
    def began(self) -> float:
        """Returns when this node began to end its part, on the leader's clock, or about 0 if it sent no report yet."""
        return self.clock.here(self.status.get("began") or self.status.get("time", 0.0))

    @property
    def engine_code(self) -> int:
        """Returns the exit code of the engine's process: 128+n after signal n, and 0 while the code is unknown."""
        signal = self.status.get("signal")
        return 128 + signal if signal else self.status.get("engine_status") or 0

    @property
    def unaccounted(self) -> "list[int]":
        """Returns the ranks that were to run and whose end is not known."""
        known = {rank for rank, _ in self.ends}
        return [rank for rank in self.ranks if rank not in known]

    def started_since(self, time: float) -> bool:
        """Returns whether the elastic engine has started all ranks again since `time`, on the node's clock."""
        up, when = self.up
        return 0 < len(self.ranks) <= (up or 0) and when > time

    # -- the failure by which this node ended the run -------------------------------------------------------
    def of_engine(self) -> Failure:
        signal = self.status.get("signal")
        return Failure(self.host, self.node_rank, self.engine_code, self.began, signal=signal, what="engine")

    def of_node(self) -> Failure:
        """Returns the failure of a node that ended its part by itself."""
        reason, code = self.status.get("reason"), OWN_CAUSES.get(self.cause or "", EXIT_HOST_FAILED)
        why: run.Why | None = {"kind": self.cause or "ended", "message": reason, "hint": None} if reason else None
        return Failure(self.host, self.node_rank, code, self.began, what=self.cause or "node", why=why)

    def of_lost(self) -> Failure:
        return Failure(self.host, self.node_rank, EXIT_CONNECT, self.lost or 0.0, what="node", why=self.why)
