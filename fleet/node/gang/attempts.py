"""A run as a row of attempts: after a failure the whole gang is started again, up to --max-restarts times; after
the loss of a node with a spare in its place, as long as there are spares."""

from typing import NamedTuple

from fleet.node.base.types import run

PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0
LONG_SECONDS = 60.0  # who failed after that long was no quick failure


class Attempts(NamedTuple):
    """How often a run may be started again. most: --max-restarts. restarts: failures so far. quick: those in a row that
    came soon after a start. replaces: spares take the place of lost nodes for this attempt."""

    most: int = 0
    restarts: int = 0
    quick: int = 0
    replaces: bool = False

    def after(
        self, verdict: "run.Verdict | None", lost: int, spares: int, lasted: float, least: int = 0
    ) -> "Attempts | None":
        """Returns what follows an attempt that ended so, and lasted so many seconds; None: nothing. lost: nodes that it
        ended without. least: of an elastic run, whose engine restarts ranks."""
        first = verdict and verdict["first"]
        if not first or first["what"] == "link" or least:
            return None
        quick = 0 if lasted >= LONG_SECONDS else self.quick + 1
        if 0 < lost <= spares:
            return Attempts(self.most, self.restarts, quick, True)
        return Attempts(self.most, self.restarts + 1, quick) if self.restarts < self.most else None

    @property
    def pause(self) -> float:
        """Seconds before the attempt begins: a script that fails at once is not started again and again at once."""
        return min(MAX_PAUSE_SECONDS, PAUSE_SECONDS * float(2 ** max(0, self.quick - 1)))
