"""`fleet sync --data`: files to every host by a pipelined broadcast."""

from fleet.delivery.chain.transfer import Item, run
from fleet.ops.broadcast.planning import BroadcastPlan, plan

__all__ = ["BroadcastPlan", "Item", "plan", "run"]
