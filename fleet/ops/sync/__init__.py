"""`fleet sync`: code to every host."""

from fleet.ops.sync.code import SyncPlan, execute, make_plan

__all__ = ["SyncPlan", "execute", "make_plan"]
