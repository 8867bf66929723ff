"""A run as a row of attempts, pure: after a failure the whole gang is started again, as often as --max-restarts says;
after the loss of a node with a spare in its place, as long as there are spares.

An attempt is a start like the first, with a port and so a store of its own. What it takes (`Course`) is known to the
process that planned the run, and to the one that it leaves behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fleet.answers.runs import RunSummary
from fleet.model import Report
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.start.spares import Failed, lost_hosts

PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0
LONG_SECONDS = 60.0  # who failed after that long was no quick failure


@dataclass(frozen=True)
class Course:
    """What starting a run again takes. plan: of the attempt under way. restarts: failures so far. quick: those in a row
    that came soon after a start. lost: the hosts that others replace for this attempt."""

    plan: Plan
    restarts: int = 0
    quick: int = 0
    lost: Failed = field(default_factory=dict)

    def after(self, report: Report, lasted: float) -> Course | None:
        """What is to be started after an attempt that ended so, and lasted so many seconds; None: nothing."""
        failure, lost = report.read(RunSummary).first_failure, lost_hosts(report)
        if failure is None or failure.what == "link" or self.plan.elastic:  # its engine restarts
            return None
        quick = 0 if lasted >= LONG_SECONDS else self.quick + 1
        plan = replace(self.plan, attempt=self.plan.attempt + 1)
        if 0 < len(lost) <= len(plan.spares):
            return Course(plan.without(lost), self.restarts, quick, lost)
        return Course(plan, self.restarts + 1, quick) if self.restarts < self.most else None

    @property
    def most(self) -> int:
        """Restarts."""
        return self.plan.job.max_restarts

    @property
    def pause(self) -> float:
        """Seconds before the attempt begins: a script that fails at once is not started again and again at once."""
        return min(MAX_PAUSE_SECONDS, PAUSE_SECONDS * float(2 ** max(0, self.quick - 1)))


@dataclass(frozen=True)
class Ended:
    """An attempt that another one is to follow. told: what was said of that."""

    report: Report
    told: dict[str, Any]
