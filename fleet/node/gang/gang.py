"""Implements the gang rule: decides from the messages of an attempt's nodes whether all must stop, and which failure
came first.

`Clock` converts times of nodes to the leader's clock, so that times of different nodes can be compared. An elastic run
(`--nnodes MIN:MAX`, least > 0) has another rule, see elastic.py.
"""

from fleet.node.base.types import TYPE_CHECKING, Callable, Mapping, Sequence, run
from fleet.node.gang.ends import BY_HAND, SIGTERM, Failure, NodeState, RankEnd

if TYPE_CHECKING:
    Parts = Mapping[str, tuple[int, Sequence[int]]]

TIE_SECONDS = 0.1  # the precision of converted times
LATE_SECONDS = 0.5  # so long a busy supervisor may take to notice the end of its engine
NEVER = float("inf")


class Gang:
    """Collects messages, and decides two things: whether all nodes must stop now (`receive`, `node_lost`), and what
    failed first (`first`). nodes: host -> (node rank, ranks of that node)."""

    least = 0  # in an elastic run: the number of nodes that must be left

    def __init__(self, nodes: "Parts") -> None:
        self.nodes = {host: NodeState(host, *part) for host, part in nodes.items()}
        self.away: set[str] = set()  # lost nodes without which the run goes on
        self.absent: set[str] = set()  # nodes in `away` that have never been there
        self.unknown: set[str] = set()  # nodes that have not responded; the run does not end because of them
        self.link_is_whole = False  # the leader's link works, even if all nodes are lost: other hosts respond
        self.needed = ""  # why the run cannot go on without a lost node
        self.stopped_at: float | None = None
        self.end: run.Verdict | None = None  # who stopped all nodes, and why
        self.verdict: run.Verdict | None = None  # how the run ended, once that is decided
        self.stall: Failure | None = None
        self.ways: run.Why | None = None  # why nodes do not reach each other, found after ranks timed out
        # the collective in which ranks wait, if that is known: why, the remedy, the ranks that are missing from it
        self.collective: tuple[str, str, list[int]] | None = None
        self.at: dict[int, str] = {}  # rank -> where it was when others timed out
        self._stop_began = NEVER  # set by first()

    @property
    def by_hand(self) -> bool:
        return self.end is not None and self.end["by"] in BY_HAND

    def stop(self, end: "run.Verdict", now: float) -> bool:
        """Records that all nodes must stop. Returns False if that was recorded before."""
        if self.stopped_at is not None:
            return False
        self.stopped_at, self.end = now, end
        return True

    # -- messages of nodes ----------------------------------------------------------------------------------
    def receive(self, host: str, message: "run.News", now: float) -> "run.Verdict | None":
        """Handles a message of a node. Returns a reason to stop all nodes, or None."""
        node = self.nodes[host]
        if "sent" in message:
            node.clock.receive(message["sent"], now)  # type: ignore[typeddict-item]
        if message["event"] == "rank":
            return self.rank_ended(RankEnd.of(host, node.node_rank, message))
        if message["event"] == "clock":
            node.up = message["up"], message["sent"]
        elif message["event"] == "failed":
            return self.node_status(host, {"state": "lost", "reason": message["message"]})
        elif message["event"] == "verdict":
            self.verdict = self.verdict or message["verdict"]
            self.stop(message["verdict"], now)
        elif message["event"] == "status" and message.get("state") != "running":
            return self.node_status(host, message)
        return None

    def rank_ended(self, end: RankEnd) -> "run.Verdict | None":
        """Records a rank's end. Returns a reason to stop all nodes, or None. In an elastic run the engine decides."""
        self.nodes[end.host].ends[(end.rank, end.attempt)] = end
        if end.failed and not end.asked and not self.least and self.stopped_at is None:
            when = self.nodes[end.host].clock.here(end.time)
            return Failure.of(end, when).reason("rank %d on %s failed" % (end.rank, end.host))
        return None

    def node_status(self, host: str, status: "run.RunState") -> "run.Verdict | None":
        node = self.nodes[host]
        node.status = status
        end = status.get("end")
        if end is not None and (self.end is None or end["by"] in BY_HAND and not self.by_hand):
            self.end = end  # it replaces an earlier end: that of a rank may be a consequence of this one
            return end
        if self.stopped_at is not None:
            return None
        if node.state == "exited" and node.engine_code:
            return node.of_engine().reason("the engine on %s failed" % host)
        if node.state in ("stopped", "lost") or node.cause is not None:
            return node.of_node().reason("%s: %s" % (host, status.get("reason") or node.state))
        return None

    def node_lost(self, host: str, last_received: float, why: "run.Why | None" = None) -> "run.Verdict | None":
        """Records that a node is given up, and returns a reason to stop all nodes. last_received: when the node's last
        message came, on the leader's clock."""
        node = self.nodes[host]
        node.lost, node.why = last_received, why
        return node.of_lost().reason("%s was lost" % host + (": " + why["message"] if why else ""))

    # -- what failed first ----------------------------------------------------------------------------------
    def first(self, collateral: "Callable[[RankEnd], bool]" = lambda end: False) -> "Failure | None":
        """Returns the earliest failure of all nodes that was no consequence of a stop, or None if there is no failure.

        collateral: a function that returns whether a rank failed only as a consequence of another failure.
        """
        if self.stall is not None:
            return self.stall
        others = [node.began for node in self.nodes.values() if node.status.get("end")]  # another head stopped it
        self._stop_began = min([*others, *([self.stopped_at] if self.stopped_at is not None else [])], default=NEVER)
        given = self.end["first"] if self.end is not None else None
        found = [*self.rank_failures(collateral), *self.node_failures()]
        return min(found, key=lambda f: f.time, default=given and self.named(given))

    def named(self, first: "run.First") -> Failure:
        """Returns the failure in a verdict. The host is found by its node rank, as another head may use other names."""
        host = min(self.nodes, key=lambda host: self.nodes[host].node_rank != first["node_rank"])
        known = {name: value for name, value in first.items() if name in Failure._fields}
        return Failure(**dict(known, host=host))  # type: ignore[arg-type]

    @property
    def all_well(self) -> bool:
        """Returns whether every rank of every node has ended with 0, and none will be started again."""
        ends = (end for node in self.nodes.values() for end in node.ends.values())
        return (
            not self.least
            and self.stopped_at is None
            and not any(node.unaccounted for node in self.nodes.values())
            and not any(end.failed for end in ends)
        )

    def _gave_up(self, node: NodeState) -> bool:
        """Returns whether a node ended its part without a recorded cause, before any stop."""
        why = node.cause or node.status.get("end")
        return node.state in ("stopped", "lost") and not why and self._before_stop(node.began)

    def _own_cause(self, node: NodeState) -> "str | None":
        """Returns the node's cause, or None if it is a consequence of the leader's stop. On a full disk a stop is sent
        as a signal, so that a node may report "signal" as its cause."""
        return node.cause if node.cause == "supervisor" or self._before_stop(node.began) else None

    def _explained(self, end: RankEnd, when: float, cause: "str | None") -> bool:
        """Returns whether a rank's end is a consequence of the end of its node or engine. cause: the node's cause."""
        node = self.nodes[end.host]
        if cause is not None:  # a supervisor's death may end ranks before it is noticed
            return when >= node.began - TIE_SECONDS or cause == "supervisor" and end.signal == SIGTERM
        if node.state != "exited" or end.signal is None:
            return False
        return when > node.began - (self._late(node) if end.signal == SIGTERM else 0.0)

    def _late(self, node: NodeState) -> float:
        # the death of an engine ends its ranks at once, and a busy supervisor notices it after them
        return LATE_SECONDS if node.status.get("signal") else 0.0

    def _before_stop(self, when: float) -> bool:
        # Converted times are never too early (Clock), and never later than their message was received. So a cause
        # of the stop comes before the stop, and a consequence comes after it.
        return when <= self._stop_began

    def rank_failures(self, collateral: "Callable[[RankEnd], bool]") -> "list[Failure]":
        """Returns the failure of the rank that failed first, as a list of at most one."""
        ends = [(self.nodes[e.host].clock.here(e.time), e) for e in self.last_attempts() if e.failed]
        own = {host: self._own_cause(node) for host, node in self.nodes.items()}
        ends = [(when, end) for when, end in ends if self._before_stop(when)]
        ends = [(when, end) for when, end in ends if not self._explained(end, when, own[end.host])]
        if not ends:
            return []
        earliest = min(when for when, _ in ends)
        # after a failure an engine sends SIGTERM to its other ranks: in a tie, SIGTERM is never the cause
        tied = [(when, end) for when, end in ends if when <= earliest + TIE_SECONDS]
        _, end = min(tied, key=lambda it: (it[1].signal == SIGTERM, collateral(it[1]), it[0], it[1].rank))
        return [Failure.of(end, earliest)]

    def last_attempts(self) -> "list[RankEnd]":
        return [end for node in self.nodes.values() for end in node.ends.values()]

    def node_failures(self) -> "list[Failure]":
        found = []
        for node in self.nodes.values():
            if node.state == "exited" and node.engine_code and self._before_stop(node.began - self._late(node)):
                found.append(node.of_engine())
            elif self._own_cause(node) is not None or self._gave_up(node):  # also if it was lost while it ended
                found.append(node.of_node())
            elif node.lost is not None:
                found.append(node.of_lost())
        return found
