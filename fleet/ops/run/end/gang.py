"""The gang rule, pure: what was heard from the nodes -> whether all must stop, and which failure came first.

Times of nodes are put on the head's clock by `Clock`, so that "first" means the same on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from fleet.errors import EXIT_CONNECT, EXIT_HOST_FAILED, FleetError, HostFailed, Reason
from fleet.ops.run.end.ends import BY_HAND, OWN_CAUSES, SIGTERM, Failure, NodeState, RankEnd
from fleet.ops.run.kept.elasticity import Elasticity
from fleet.protocol.messages.run import First, RunState, Verdict

TIE_SECONDS = 0.1  # what clocks corrected over one connection cannot tell apart
LATE_SECONDS = 0.5  # by which a busy supervisor notices what ended its engine


class Gang:
    """Collects, and answers two questions: must everyone stop now (`reason`), and what failed first (`first`)."""

    def __init__(self, nodes: Mapping[str, int], elastic: Elasticity = Elasticity()) -> None:
        self.nodes = {host: NodeState(host, node_rank) for host, node_rank in nodes.items()}
        self.elastic = elastic
        self.away: set[str] = set()  # nodes that the run goes on without
        self.absent: set[str] = set()  # of those, who has not been there yet
        self.unknown: set[str] = set()  # nodes that have not answered, which is no reason to end anything
        self.link_is_whole = False  # this machine's own, though all nodes be lost: other hosts answer
        self.needed = ""  # why it does not go on without one
        self.stopped_at: float | None = None
        self.end: Verdict | None = None  # who had all stopped, and why
        self.verdict: Verdict | None = None  # how the run ended, where that is decided
        self.stall: Failure | None = None
        self._stop_began = inf  # as first() finds it

    @property
    def by_hand(self) -> bool:
        return self.end is not None and self.end["by"] in BY_HAND

    def stop(self, end: Verdict, now: float) -> bool:
        """Note that everyone is told to stop; False when they were already."""
        if self.stopped_at is not None:
            return False
        self.stopped_at, self.end = now, end
        return True

    def rank_ended(self, end: RankEnd) -> Verdict | None:
        """A reason to stop everyone, or None. An engine that restarts ranks decides for itself."""
        self.nodes[end.host].ranks[(end.rank, end.attempt)] = end
        if end.failed and not end.asked and not self.elastic and self.stopped_at is None:
            when = self.nodes[end.host].clock.on_head(end.time)
            return Failure.of(end, when).reason(f"rank {end.rank} on {end.host} failed")
        return None

    def node_status(self, host: str, status: RunState) -> Verdict | None:
        node = self.nodes[host]
        node.status = status
        end = status.get("end")
        if end is not None and (self.end is None or end["by"] in BY_HAND and not self.by_hand):
            self.end = end  # a rank's end may have been heard before, it is the answer
            return end
        if self.stopped_at is not None:
            return None
        if node.state == "exited" and node.engine_code:
            return self._of_engine(node).reason(f"the engine on {host} failed")
        if node.state in ("stopped", "lost") or node.cause is not None:
            return self._of_node(node).reason(f"{host}: {status.get('reason') or node.state}")
        return None

    def _of_engine(self, node: NodeState) -> Failure:
        signal = node.status.get("signal")
        return Failure(node.host, node.node_rank, node.engine_code, node.began, signal=signal, what="engine")

    def _of_node(self, node: NodeState) -> Failure:
        """That it ended its part."""
        reason, code = node.status.get("reason"), OWN_CAUSES.get(node.cause or "", EXIT_HOST_FAILED)
        why = HostFailed(Reason.of_node(reason), kind=node.cause or "ended") if reason else None
        return Failure(node.host, node.node_rank, code, node.began, what=node.cause or "node", why=why)

    def node_lost(self, host: str, heard: float, why: FleetError | None = None) -> Verdict | None:
        node = self.nodes[host]
        node.lost, node.why = heard, why
        return self._of_lost(node).reason(f"{host} was lost" + (f": {why.message}" if why else ""))

    def _of_lost(self, node: NodeState) -> Failure:
        return Failure(node.host, node.node_rank, EXIT_CONNECT, node.lost or 0.0, what="node", why=node.why)

    def first(self, collateral: Callable[[RankEnd], bool] = lambda end: False) -> Failure | None:
        """The earliest failure over all nodes that was not the answer to a stop; None when all went well.

        collateral: says of a failed rank whether its output only reports another one's death.
        """
        if self.stall is not None:
            return self.stall
        others = [node.began for node in self.nodes.values() if node.status.get("end")]  # where another head stopped it
        self._stop_began = min([*others, *([self.stopped_at] if self.stopped_at is not None else [])], default=inf)
        told = self.end["first"] if self.end is not None else None
        found = [*self._rank_failures(collateral), *self._node_failures()]
        return min(found, key=lambda f: f.time, default=told and self.told(told))

    def told(self, first: First) -> Failure:
        """Returns the failure that a verdict has: of a head that may call its hosts otherwise."""
        host = min(self.nodes, key=lambda host: self.nodes[host].node_rank != first["node_rank"])
        told = first["why"]
        why = told and HostFailed(Reason.of_node(told["message"]), kind=told["kind"], hint=told["hint"])
        known = {name: value for name, value in first.items() if name in Failure.__annotations__}
        return Failure(**{**known, "host": host, "why": why})  # type: ignore[arg-type]

    def all_well(self, ranks: Mapping[str, Iterable[int]]) -> bool:
        """Whether every rank of every node has ended, with 0, and none is ever started again. ranks: by host."""
        ends = (end for node in self.nodes.values() for end in node.ranks.values())
        return (
            not self.elastic
            and self.stopped_at is None
            and not any(self.unaccounted(host, known) for host, known in ranks.items())
            and not any(end.failed for end in ends)
        )

    def unaccounted(self, host: str, ranks: Iterable[int]) -> list[int]:
        """Ranks of a node that were to run and of which no end is known."""
        known = {rank for rank, _ in self.nodes[host].ranks}
        return [rank for rank in ranks if rank not in known]

    def _gave_up(self, node: NodeState) -> bool:
        """Returns whether a node ended its part without a cause on record, and without a stop."""
        why = node.cause or node.status.get("end")
        return node.state in ("stopped", "lost") and not why and self._before_stop(node.began)

    def _own_cause(self, node: NodeState) -> str | None:
        """The node's own, unless it is an answer to the head: on a full disk a stop comes as a signal, too."""
        return node.cause if node.cause == "supervisor" or self._before_stop(node.began) else None

    def _explained(self, end: RankEnd, when: float, cause: str | None) -> bool:
        """Whether a rank's end is the answer to that of its node or engine, and not its cause. cause: the node's."""
        node = self.nodes[end.host]
        if cause is not None:  # what a supervisor's death does to its engine may come before it is noticed
            return when >= node.began - TIE_SECONDS or cause == "supervisor" and end.signal == SIGTERM
        if node.state != "exited" or end.signal is None:
            return False
        # the death of an engine ends its ranks at once, and a busy supervisor notices it after them
        killed = node.status.get("signal") is not None and end.signal == SIGTERM
        return when > node.began - (LATE_SECONDS if killed else 0.0)

    def _before_stop(self, when: float) -> bool:
        # Corrected times are never early (Clock), and never later than the message that brought them: what
        # caused the stop lies before it, what the stop caused lies behind it.
        return when <= self._stop_began

    def _rank_failures(self, collateral: Callable[[RankEnd], bool]) -> list[Failure]:
        ends = [(self.nodes[e.host].clock.on_head(e.time), e) for e in self.last_attempts() if e.failed]
        own = {host: self._own_cause(node) for host, node in self.nodes.items()}
        ends = [(when, end) for when, end in ends if self._before_stop(when)]
        ends = [(when, end) for when, end in ends if not self._explained(end, when, own[end.host])]
        if not ends:
            return []
        earliest = min(when for when, _ in ends)
        # an engine passes a failure on to the rank's neighbours as SIGTERM: never the cause within a tie
        tied = [(when, end) for when, end in ends if when <= earliest + TIE_SECONDS]
        _, end = min(tied, key=lambda it: (it[1].signal == SIGTERM, collateral(it[1]), it[0], it[1].rank))
        return [Failure.of(end, earliest)]

    def last_attempts(self) -> list[RankEnd]:
        return [end for node in self.nodes.values() for end in node.ranks.values()]

    def _node_failures(self) -> list[Failure]:
        found = []
        for node in self.nodes.values():
            if node.lost is not None:
                found.append(self._of_lost(node))
            elif node.state == "exited" and node.engine_code and self._before_stop(node.began):
                found.append(self._of_engine(node))
            elif self._own_cause(node) is not None or self._gave_up(node):
                found.append(self._of_node(node))
        return found
