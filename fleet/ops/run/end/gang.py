"""The gang rule, pure: what was heard from the nodes -> whether all must stop, and which failure came first.

Times of nodes are put on the head's clock by `Clock`, so that "first" means the same on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from fleet.errors import EXIT_CONNECT, EXIT_HOST_FAILED, ConnectError, DeadlineError, FleetError, HostFailed, Reason
from fleet.ops.run.end.ends import BY_HAND, OWN_CAUSES, SIGTERM, Failure, NodeState, RankEnd, run_end
from fleet.ops.run.kept.elasticity import Elasticity
from fleet.protocol.messages.run import RunEnd, RunState

TIE_SECONDS = 0.1  # what clocks corrected over one connection cannot tell apart
LATE_SECONDS = 0.5  # by which a node's clock may seem late to who looks at a run that is over
SEEN = ("stall", "lost")  # by the head that leads, and by no other one


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
        self.end: RunEnd | None = None  # who had all stopped
        self.stall: Failure | None = None
        self._stop_began = inf  # as first() finds it

    @property
    def reason(self) -> str | None:
        return self.end["message"] if self.end is not None else None

    @property
    def by_hand(self) -> bool:
        return self.end is not None and self.end["by"] in BY_HAND

    def stop(self, end: RunEnd, now: float) -> bool:
        """Note that everyone is told to stop; False when they were already."""
        if self.stopped_at is not None:
            return False
        self.stopped_at, self.end = now, end
        return True

    def rank_ended(self, end: RankEnd) -> RunEnd | None:
        """A reason to stop everyone, or None. An engine that restarts ranks decides for itself."""
        self.nodes[end.host].ranks[(end.rank, end.attempt)] = end
        if end.failed and not end.asked and not self.elastic and self.stopped_at is None:
            return run_end("failure", f"rank {end.rank} on {end.host} failed", end.exit_code, end.host)
        return None

    def node_status(self, host: str, status: RunState) -> RunEnd | None:
        node = self.nodes[host]
        node.status = status
        end = status.get("end")
        if end is not None and self._comes_first(end):
            self.end = end  # a rank's end may have been heard before, it is the answer
            return end
        if self.stopped_at is not None:
            return None
        if node.state == "exited" and node.engine_code:
            return run_end("failure", f"the engine on {host} failed", node.engine_code, host)
        if node.state in ("stopped", "lost") or node.cause is not None:
            code = OWN_CAUSES.get(node.cause or "", EXIT_HOST_FAILED)
            return run_end("failure", f"{host}: {status.get('reason') or node.state}", code, host)
        return None

    def _comes_first(self, end: RunEnd) -> bool:
        """Whether what another head had the run stopped for goes before what this one made of the ends of ranks and
        nodes."""
        if self.end is None:
            return True
        seen = self.end["by"] == "failure" and end["by"] in SEEN
        return not self.by_hand and (end["by"] in BY_HAND or seen)

    def node_lost(self, host: str, heard: float, why: FleetError | None = None) -> RunEnd | None:
        self.nodes[host].lost, self.nodes[host].why = heard, why
        return run_end("lost", f"{host} was lost" + (f": {why.message}" if why else ""), EXIT_CONNECT, host)

    def first(self, collateral: Callable[[RankEnd], bool] = lambda end: False) -> Failure | None:
        """The earliest failure over all nodes that was not the answer to a stop; None when all went well.

        collateral: says of a failed rank whether its output only reports another one's death.
        """
        if self.stall is not None:
            return self.stall
        others = [node.began for node in self.nodes.values() if node.status.get("end")]  # where another head stopped it
        self._stop_began = min([*others, *([self.stopped_at] if self.stopped_at is not None else [])], default=inf)
        found = [*self._rank_failures(collateral), *self._node_failures(), *self._others()]
        first = min(found, key=lambda f: f.time, default=self._named())
        # of nodes that ended their parts by themselves at about the same time every head is to name the same one
        alike = [
            f for f in found if first and f.what == first.what in OWN_CAUSES and f.time <= first.time + LATE_SECONDS
        ]
        return min(alike, key=lambda f: f.node_rank, default=first)

    def _named(self) -> Failure | None:
        """What it was stopped for, by name: who comes later reads all clocks late, and some so late that this seems to
        lie behind the stop."""
        end = self.end
        if end is None or end["by"] != "failure" or end["host"] not in self.nodes:
            return None
        node, code = self.nodes[end["host"]], end["code"]
        ends = [e for e in node.ranks.values() if e.failed and e.exit_code == code and not e.asked]
        if rank := min(ends, key=lambda e: e.time, default=None):
            if not self._explained(rank, node.clock.on_head(rank.time), node.cause):
                return Failure.of(rank, node.began)
            code = OWN_CAUSES.get(node.cause or "", node.engine_code)  # the rank's end was only heard of before it
        what = "engine" if node.state == "exited" and node.engine_code == code else node.cause or "node"
        why = HostFailed(Reason.of_node(end["message"]), kind="ended") if what == "node" else None
        by = node.status.get("signal") if what == "engine" else None
        return Failure(node.host, node.node_rank, code, node.began, signal=by, what=what, why=why)

    def _others(self) -> list[Failure]:
        """What another head had the run stopped for, and only that one saw."""
        end, began = self.end, [node.began for node in self.nodes.values() if node.status.get("end")]
        if end is None or not began or end["by"] not in SEEN:
            return []
        host = end["host"] if end["host"] in self.nodes else next(iter(self.nodes))
        if self.nodes[host].lost is not None:
            return []
        error = DeadlineError if end["by"] == "stall" else ConnectError
        why = error(Reason.of_node(end["message"]), kind="stalled" if end["by"] == "stall" else "lost")
        what = "stalled" if end["by"] == "stall" else "node"
        return [Failure(host, self.nodes[host].node_rank, end["code"], min(began), what=what, why=why)]

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

    def _given_up(self, node: NodeState) -> bool:
        """Whether another head had the run stopped because it lost this node, which then ended by itself."""
        return self.end is not None and (self.end["by"], self.end["host"]) == ("lost", node.host)

    def _own_cause(self, node: NodeState) -> str | None:
        """The node's own, unless it is an answer to the head: on a full disk a stop comes as a signal, too."""
        slack = 0.0 if node.status.get("disk_full") else LATE_SECONDS
        answers = node.cause != "supervisor" and not self._before_stop(node.began - slack)
        return None if answers else node.cause

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
            when = node.began
            if node.lost is not None:
                found.append(Failure(node.host, node.node_rank, EXIT_CONNECT, node.lost, what="node", why=node.why))
            elif self._given_up(node):
                pass  # see _others()
            elif node.state == "exited" and node.engine_code and self._before_stop(when):
                by = node.status.get("signal")
                found.append(Failure(node.host, node.node_rank, node.engine_code, when, what="engine", signal=by))
            elif (cause := self._own_cause(node)) is not None:
                found.append(Failure(node.host, node.node_rank, OWN_CAUSES[cause], when, what=cause))
            elif node.state in ("stopped", "lost") and node.status.get("end") is None and self._before_stop(when):
                reason = node.status.get("reason")
                why = HostFailed(Reason.of_node(reason), kind="ended") if reason else None
                found.append(Failure(node.host, node.node_rank, EXIT_HOST_FAILED, when, what="node", why=why))
        return found
