"""The gang rule of `--nnodes MIN:MAX`, pure: a node that goes is no reason to stop while enough are left."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fleet.errors import EXIT_CONNECT, EXIT_HOST_FAILED, FleetError
from fleet.ops.run.end.ends import Failure, NodeState, RankEnd, run_end
from fleet.ops.run.end.gang import Gang
from fleet.ops.run.kept.elasticity import Elasticity
from fleet.ops.run.kept.record import RunRecord
from fleet.protocol.messages.run import RunState, Verdict
from fleet.protocol.state import FINAL

SETTLE_SECONDS = 4.0


class ElasticGang(Gang):
    """sizes: how many ranks each has. away: hosts that went, and are not back. The
    first node is where ranks meet: nothing goes on without it."""

    def __init__(self, nodes: Mapping[str, int], elastic: Elasticity, sizes: Mapping[str, int]) -> None:
        super().__init__(nodes, elastic)
        self._sizes = sizes

    def rank_ended(self, end: RankEnd) -> Verdict | None:
        self.nodes[end.host].done = (  # after a failure the engine starts all of them again, if it can
            frozenset() if end.failed or end.signalled else self.nodes[end.host].done | {end.local_rank}
        )
        return super().rank_ended(end)

    @property
    def _there(self) -> dict[str, NodeState]:
        return {host: it for host, it in self.nodes.items() if host not in self.away and it.state not in FINAL}

    @property
    def able(self) -> list[str]:
        # hosts whose engines may start ranks: torchrun's agents never meet again once theirs have all ended with 0
        return [host for host, node in self._there.items() if len(node.done) < self._sizes[host]]

    @property
    def at_an_end(self) -> bool:
        # No rank lives, and none will: too few engines may start any. Every node has reported so some seconds
        # after the last rank ended, for those that have met do not begin at the same moment.
        there = self._there.values()
        ends = [node.clock.on_head(end.time) for node in self.nodes.values() for end in node.ranks.values()]
        return (
            self.stopped_at is None
            and bool(there and ends)
            and not self.unknown
            and not self.elastic.enough(len(self.able))
            and all(it.up[0] == 0 and it.clock.on_head(it.up[1]) > max(ends) + SETTLE_SECONDS for it in there)
        )

    def dead_end(self) -> Verdict | None:
        # why ranks that failed, or were ended to meet others, can never go on; None: there are none, all is done
        if not any(self.nodes[host].ranks for host in self.able):
            return None
        for it in super()._rank_failures(lambda end: False):
            return self.too_few(f"rank {it.rank} on {it.host} failed", it.host, it.exit_code)
        return self.too_few("no rank lives", next(iter(self.away), None))

    def too_few(self, why: str, host: str | None, code: int = EXIT_HOST_FAILED) -> Verdict:
        # a reason to stop everyone. host: that failed, or is away
        lost = host is not None and self.nodes[host].lost is not None
        able, least = len(self.able), self.elastic.least
        self.needed = f"; {able} of {len(self.nodes)} nodes can start ranks again, --nnodes asks for {least}"
        return run_end("lost" if lost else "failure", why + self.needed, EXIT_CONNECT if lost else code, host)

    def node_status(self, host: str, status: RunState) -> Verdict | None:
        reason = super().node_status(host, status)
        node = self.nodes[host]
        for_good = node.state == "exited" and not status.get("signal")  # an agent that gives up closes the rendezvous
        if reason is None or for_good or status.get("end") is not None:  # another head had it stopped
            return reason
        return self._without(host, reason)

    def node_lost(self, host: str, heard: float, why: FleetError | None = None) -> Verdict | None:
        reason = super().node_lost(host, heard, why)
        return reason and self._without(host, reason)

    def _without(self, host: str, reason: Verdict) -> Verdict | None:
        if self.stopped_at is not None:
            return reason
        self.away.add(host)
        left = len(self.nodes) - len(self.away)
        if self.nodes[host].node_rank == 0:
            self.needed = "; ranks meet there, so nothing goes on without it"
        elif not self.elastic.enough(left):
            self.needed = f"; {left} of {len(self.nodes)} nodes are left, --nnodes asks for {self.elastic.least}"
        return {**reason, "message": reason["message"] + self.needed} if self.needed else None

    def back(self, host: str) -> None:
        """It takes part again, as if it had just been started."""
        self.away.discard(host)
        self.absent.discard(host)
        self.nodes[host] = NodeState(host, self.nodes[host].node_rank)

    def gone_at(self, host: str) -> float:
        """When a host that is away went, on the head's clock."""
        node = self.nodes[host]
        return node.lost or node.began

    def _rank_failures(self, collateral: Callable[[RankEnd], bool]) -> list[Failure]:
        return super()._rank_failures(collateral) if self.stopped_at is not None else []

    def _node_failures(self) -> list[Failure]:
        # it went on without those that are away, but for the one that it ended for
        away = self.away - {self.end["host"] if self.end is not None else None}
        return [failure for failure in super()._node_failures() if failure.host not in away]

    def last_attempts(self) -> list[RankEnd]:
        # each rank's last end, where its engine did not bring it about: each agent counts its own restarts
        ends = [end for host, node in self.nodes.items() if host not in self.away for end in node.ranks.values()]
        last = list({(end.host, end.local_rank): end for end in sorted(ends, key=lambda end: end.time)}.values())
        return [end for end in last if not end.signalled] or last * (not self.away)


def gang_of(record: RunRecord) -> Gang:
    nodes = {node.host.name: node.node_rank for node in record.nodes}
    return (
        ElasticGang(nodes, record.elastic, {node.host.name: node.local_world_size for node in record.nodes})
        if record.elastic
        else Gang(nodes)
    )
