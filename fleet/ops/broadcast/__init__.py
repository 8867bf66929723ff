"""`fleet sync --data`: files to every host by a pipelined broadcast."""

from fleet.ops.broadcast.execute import run
from fleet.ops.broadcast.planning import BroadcastPlan, Item, plan

__all__ = ["BroadcastPlan", "Item", "plan", "run"]
