"""Implements the gang rule of `--nnodes MIN:MAX`: losing a node does not stop the run while enough are left."""

from typing import NamedTuple

from fleet.node.base.types import TYPE_CHECKING, Callable, Sequence, run
from fleet.node.gang.ends import Failure, NodeState, RankEnd, run_end
from fleet.node.gang.gang import NEVER, Gang
from fleet.protocol.codes import EXIT_CONNECT, EXIT_HOST_FAILED
from fleet.protocol.state import FINAL

if TYPE_CHECKING:
    from fleet.node.gang.gang import Parts

SETTLE_SECONDS = 4.0  # after the last rank's end: so long nodes may take to start further ranks
HANG_SECONDS = 8.0  # so long ranks may take to notice by themselves that another one is gone


class Turn(NamedTuple):
    """Describes the next actions of an elastic run. went: hosts that were just lost; the run goes on without them.
    renew: hosts whose ranks must be ended, as they wait for a lost rank. over: all remaining ranks are done. end: why
    all nodes must stop."""

    went: "list[str]"
    renew: "list[str]"
    over: bool = False
    end: "run.Verdict | None" = None


class ElasticGang(Gang):
    """Applies the rule of an elastic run. least: the number of nodes that must be left. away: hosts that were lost and
    are not back. The run cannot go on without the node with rank 0, as ranks meet there."""

    def __init__(self, nodes: "Parts", least: int) -> None:
        Gang.__init__(self, nodes)
        self.least = least
        self._since: dict[str, float] = {}  # host that is away -> when that became known; NEVER: it is dealt with

    def look(self, now: float) -> Turn:
        """Returns the next actions. Must be called several times a second. now: seconds of a monotonic clock."""
        went = [host for host in self.away if host not in self._since]
        renew: list[str] = []
        self._since = {host: self._since.get(host, now) for host in self.away}
        for host, since in self._since.items():
            if host in self.absent:  # no rank waits for a node that was never there
                self._since[host] = NEVER
            elif now - since > HANG_SECONDS:
                self._since[host] = NEVER
                if self.able and len(self.able) < self.least:
                    return Turn(went, renew, end=self.too_few("%s is out" % host, host))
                renew += self._waits_for(host)
        end = self.dead_end() if self.at_an_end else None
        return Turn(went, renew, self.at_an_end and end is None, end)

    def rank_ended(self, end: RankEnd) -> "run.Verdict | None":
        self.nodes[end.host].done = (  # after a failure the engine starts all its ranks again, if it can
            frozenset() if end.failed or end.signalled else self.nodes[end.host].done | {end.local_rank}
        )
        return Gang.rank_ended(self, end)

    @property
    def _there(self) -> "dict[str, NodeState]":
        return {host: it for host, it in self.nodes.items() if host not in self.away and it.state not in FINAL}

    @property
    def able(self) -> "list[str]":
        # hosts whose engines may start ranks: a torchrun agent whose ranks all ended with 0 joins no more rendezvous
        return [host for host, node in self._there.items() if len(node.done) < len(node.ranks)]

    @property
    def at_an_end(self) -> bool:
        # No rank is alive, and none will be: too few engines may start ranks. Every node must report that, some
        # seconds after the last rank ended, as nodes start their ranks at slightly different times.
        there = self._there.values()
        ends = [node.clock.here(end.time) for node in self.nodes.values() for end in node.ends.values()]
        return (
            self.stopped_at is None
            and bool(there and ends)
            and not self.unknown
            and len(self.able) < self.least
            and all(it.up[0] == 0 and it.clock.here(it.up[1]) > max(ends) + SETTLE_SECONDS for it in there)
        )

    def dead_end(self) -> "run.Verdict | None":
        # returns why failed or renewed ranks can never go on; None if there are no such ranks, and the run is done
        if not any(self.nodes[host].ends for host in self.able):
            return None
        for it in Gang.rank_failures(self, lambda end: False):
            return self.too_few("rank %s on %s failed" % (it.rank, it.host), it.host, it.exit_code)
        return self.too_few("no rank lives", next(iter(self.away), None))

    def too_few(self, why: str, host: "str | None", code: int = EXIT_HOST_FAILED) -> "run.Verdict":
        # returns a reason to stop all nodes. host: the one that failed, or is away
        lost = host is not None and self.nodes[host].lost is not None
        able, least = len(self.able), self.least
        self.needed = "; %d of %d nodes can start ranks again, --nnodes asks for %d" % (able, len(self.nodes), least)
        return run_end("lost" if lost else "failure", why + self.needed, EXIT_CONNECT if lost else code, host)

    def node_status(self, host: str, status: "run.RunState") -> "run.Verdict | None":
        reason = Gang.node_status(self, host, status)
        node = self.nodes[host]
        for_good = node.state == "exited" and not status.get("signal")  # an agent that fails closes the rendezvous
        if reason is None or for_good or status.get("end") is not None:  # an "end": another head stopped the run
            return reason
        return self._without(host, reason)

    def node_lost(self, host: str, last_received: float, why: "run.Why | None" = None) -> "run.Verdict | None":
        reason = Gang.node_lost(self, host, last_received, why)
        return reason and self._without(host, reason)

    def _without(self, host: str, reason: "run.Verdict") -> "run.Verdict | None":
        if self.stopped_at is not None:
            return reason
        self.away.add(host)
        left = len(self.nodes) - len(self.away)
        if self.nodes[host].node_rank == 0:
            self.needed = "; ranks meet there, so nothing goes on without it"
        elif left < self.least:
            self.needed = "; %d of %d nodes are left, --nnodes asks for %d" % (left, len(self.nodes), self.least)
        reason["message"] += self.needed
        return reason if self.needed else None

    def _waits_for(self, gone: str) -> "list[str]":
        """Returns the hosts whose ranks have not noticed the loss of a node: none of their ranks has ended since."""
        since = (self.nodes[gone].lost or self.nodes[gone].began) - 2.0
        there = [it for it in self.nodes.values() if it.host not in self.away and not it.ended]
        return [it.host for it in there if all(it.clock.here(end.time) <= since for end in it.ends.values())]

    def back(self, host: str, part: "tuple[int, Sequence[int]] | None" = None) -> None:
        """Adds a host again, as if it had just been started. part: the host's node rank and ranks, if these have
        changed or the host is new."""
        self.away.discard(host)
        self.absent.discard(host)
        self.nodes[host] = NodeState(host, *(part or (self.nodes[host].node_rank, self.nodes[host].ranks)))

    def rank_failures(self, collateral: "Callable[[RankEnd], bool]") -> "list[Failure]":
        return Gang.rank_failures(self, collateral) if self.stopped_at is not None else []

    def node_failures(self) -> "list[Failure]":
        # hosts that are away did not end the run, except the one that its end names
        away = self.away - {self.end["host"] if self.end is not None else None}
        return [failure for failure in Gang.node_failures(self) if failure.host not in away]

    def last_attempts(self) -> "list[RankEnd]":
        # the last end of each rank, unless its engine caused it; attempts cannot be compared between agents
        there = [node for host, node in self.nodes.items() if host not in self.away]
        ends = [end for node in there for end in node.ends.values() if not node.started_since(end.time)]
        last = list({(end.host, end.local_rank): end for end in sorted(ends, key=lambda end: end.time)}.values())
        return [end for end in last if not end.signalled]


def gang_of(nodes: "Parts", least: int) -> Gang:
    """Returns the rule for a run. least: for an elastic run, the number of nodes that must be left; otherwise 0."""
    return ElasticGang(nodes, least) if least else Gang(nodes)
