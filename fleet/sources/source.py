"""What every source implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from fleet.model import Inventory


class Source(ABC):
    """Gives hosts. name: as --on has it. transport: how they are reached, as --transport has it."""

    name: str
    transport: str

    @abstractmethod
    def detect(self, environ: Mapping[str, str]) -> str | None:
        """What this process is in, in words ("job 12 of Slurm"); None where it is in nothing of this kind."""

    @abstractmethod
    def inventory(self, environ: Mapping[str, str]) -> Inventory:
        """Its hosts. UsageError where this process is in nothing of this kind, or what it says makes no sense."""
