"""Holds what starting a run again takes. The process that planned the run has it, and the one that continues after it.
An attempt is a start like the first, with a port and so a store of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fleet.model import Report
from fleet.node.gang.attempts import Attempts
from fleet.ops.run.end.summary import drafted
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.start.spares import Failed, lost_hosts


@dataclass(frozen=True)
class Course:
    """plan: of the attempt under way. restarts, quick: see Attempts. lost: the hosts that others replace for it."""

    plan: Plan
    restarts: int = 0
    quick: int = 0
    lost: Failed = field(default_factory=dict)

    def after(self, report: Report, lasted: float) -> Course | None:
        """Returns what is to be started after an attempt that ended so, and lasted so many seconds; None: nothing."""
        lost, plan = lost_hosts(report), replace(self.plan, attempt=self.plan.attempt + 1)
        after = self.attempts.after(drafted(report), len(lost), len(plan.spares), lasted, plan.least)
        if after is None:
            return None
        return Course(
            plan.without(lost) if after.replaces else plan, after.restarts, after.quick, lost if after.replaces else {}
        )

    @property
    def attempts(self) -> Attempts:
        return Attempts(self.plan.job.max_restarts, self.restarts, self.quick)


@dataclass(frozen=True)
class Ended:
    """An attempt that another one is to follow. told: what was reported of that."""

    report: Report
    told: dict[str, Any]
