"""`fleet sync`: code to every host."""

from fleet.delivery.mirror import run
from fleet.ops.sync.planning import SyncPlan, plan

__all__ = ["SyncPlan", "plan", "run"]
