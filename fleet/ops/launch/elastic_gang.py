"""The gang rule of `--nnodes MIN:MAX`, pure: a node that goes is no reason to stop while enough are left."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fleet.errors import FleetError
from fleet.ops.launch.gang import BY_HAND, Failure, Gang, NodeState, RankEnd
from fleet.ops.launch.record import RunRecord
from fleet.protocol.messages.run import RunEnd, RunState


class ElasticGang(Gang):
    """least: nodes that must be left. away: hosts that went, and are not back. The first node is where ranks meet:
    nothing goes on without it."""

    def __init__(self, nodes: Mapping[str, int], least: int) -> None:
        super().__init__(nodes, restarts=True)
        self.least = least

    def node_status(self, host: str, status: RunState) -> RunEnd | None:
        reason = super().node_status(host, status)
        node = self.nodes[host]
        for_good = node.state == "exited" and not status.get("signal")  # an agent that gives up closes the rendezvous
        if reason is None or for_good or reason["by"] in BY_HAND:
            return reason
        return self._without(host, reason)

    def node_lost(self, host: str, heard: float, why: FleetError | None = None) -> RunEnd | None:
        reason = super().node_lost(host, heard, why)
        return reason and self._without(host, reason)

    def _without(self, host: str, reason: RunEnd) -> RunEnd | None:
        if self.stopped_at is not None:
            return reason
        self.away.add(host)
        left = len(self.nodes) - len(self.away)
        if self.nodes[host].node_rank == 0:
            self.needed = "; ranks meet there, so nothing goes on without it"
        elif left < self.least:
            self.needed = f"; {left} of {len(self.nodes)} nodes are left, --nnodes asks for {self.least}"
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
        found = super()._node_failures()
        return found if self.stopped_at is not None else [each for each in found if each.host not in self.away]


def gang_of(record: RunRecord) -> Gang:
    nodes = {node.host.name: node.node_rank for node in record.nodes}
    return ElasticGang(nodes, record.least) if record.least else Gang(nodes, record.restarts)
