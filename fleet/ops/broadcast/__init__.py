"""`fleet sync --data`: files to every host by a pipelined broadcast."""

from fleet.ops.broadcast.execute import execute
from fleet.ops.broadcast.plan import BroadcastPlan, make_plan

__all__ = ["BroadcastPlan", "execute", "make_plan"]
