"""`fleet sync`: code to every host."""

from fleet.ops.sync.code import SyncPlan, plan, run

__all__ = ["SyncPlan", "plan", "run"]
