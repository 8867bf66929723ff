"""What `--nnodes MIN:MAX` makes different in a run, as one value that all its rooms ask."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.protocol.messages.run import About


@dataclass(frozen=True)
class Elasticity:
    """least: nodes that must be left, 0: all of them, and the run is not elastic; then this is false.

    Where it is true, the engine starts ranks again, so fleet makes no further attempt, and each node counts its own;
    hosts may come late, go, and come back, so one of which nothing is known is not missing."""

    least: int = 0

    def __bool__(self) -> bool:
        return self.least > 0

    def enough(self, nodes: int) -> bool:
        return nodes >= self.least

    def attempt(self, number: int) -> int | None:
        """Which starts of its ranks are followed on a node; None: whichever there are."""
        return None if self else number

    @classmethod
    def of(cls, about: About | None) -> Elasticity:
        """Of a run that was found."""
        return cls(about["least"] if about else 0)
