"""Defines what every source implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.errors import UsageError
from fleet.model import Inventory

if TYPE_CHECKING:
    from fleet.engines.base import Option
    from fleet.sources.queue import Queue


@dataclass(frozen=True)
class Condition:
    """Holds the condition of a host, as its source reports it. reason: why it is not used, "" where it is."""

    state: str
    reason: str = ""


class Source(ABC):
    """Gives hosts. name: as --on has it. transport: how they are reached, as --transport has it. options: those of
    `fleet launch` by which hosts are requested, where they are waited for in a queue."""

    name: str
    transport: str
    options: Sequence[Option] = ()
    asked = ""  # where its options mean something, for --help

    @abstractmethod
    def detect(self, environ: Mapping[str, str]) -> str | None:
        """Returns a name for what this process is in ("job 12 of Slurm"); None where it is in nothing of this kind."""

    @abstractmethod
    def inventory(self, environ: Mapping[str, str]) -> Inventory:
        """Its hosts. UsageError where this process is in nothing of this kind, or its variables make no sense."""

    def known(self, partition: str | None) -> tuple[Inventory, Mapping[str, Condition]]:
        """All hosts that there are, or those of a partition, and how each of them is. UsageError, HostFailed."""
        raise UsageError(f"{self.name} knows the hosts of what it is in, and no others", hint=f"--on {self.name}")

    def run_of(self, environ: Mapping[str, str]) -> tuple[str | None, int]:
        """(the run for which the surroundings of this process were requested, None: for no certain one; how often its
        queue began it again)."""
        return None, 0

    def enter(self, job: str) -> dict[str, str]:
        """Variables by which a process outside of a job has its hosts. UsageError where it has none now."""
        raise UsageError(f"--on {self.name} has no jobs")

    def enter_all(self) -> dict[str, str]:
        """The same, of all jobs that lead a run of this user's now."""
        raise UsageError(f"--on {self.name} has no jobs")

    def queue(self) -> Queue:
        """Returns the queue of its hosts. Raises UsageError where it has none."""
        raise UsageError(f"--on {self.name} has no queue: it takes the hosts that are there")
