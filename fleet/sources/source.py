"""Defines what every source implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.errors import UsageError
from fleet.model import Inventory

if TYPE_CHECKING:
    from fleet.engines.base import Option
    from fleet.sources.queue import Queue
    from fleet.transport.base import JobEnd


@dataclass(frozen=True)
class Condition:
    """Holds the condition of a host, as its source reports it. reason: why it is not used, "" where it is."""

    state: str
    reason: str = ""


class Source(ABC):
    """Gives hosts. name: as --on has it. transport: how they are reached, as --transport has it. options: those of
    `fleet launch` by which hosts are requested, where they are waited for in a queue. on_paper: a launch writes what
    requests them, and no more."""

    name: str
    transport: str
    options: Sequence[Option] = ()
    on_paper = False
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

    def scope(self, environ: Mapping[str, str]) -> str:
        """Returns within what the names of its hosts mean the same."""
        return self.name

    def nodes_for(self, options: Sequence[str], environ: Mapping[str, str]) -> tuple[str, Collection[str]]:
        """Returns the scope and the names of the hosts among which its queue chooses for a request with these options;
        no names where they are not known."""
        return self.name, ()

    def run_of(self, environ: MutableMapping[str, str]) -> tuple[str | None, int]:
        """(the run for which this process was begun, None: for no certain one; how often its queue began it again).
        Takes the run out of the variables: what this process starts is not begun for it."""
        return None, 0

    def job(self, environ: Mapping[str, str]) -> str | None:
        """Returns the number of the job that this process is in, as submit() of its queue has it; or None."""
        return None

    def requeued(self, environ: Mapping[str, str]) -> bool:
        """Is true where the queue is to begin this process's job again, if the time limit ends its run."""
        return False

    def ended(self, environ: Mapping[str, str], *, signalled: bool) -> JobEnd | None:
        """Returns why its queue ends this process's job, or is to begin it again; None where it does not. signalled:
        this process was sent a signal."""
        return None

    def enter(self, job: str) -> dict[str, str]:
        """Variables by which a process outside of a job has its hosts. UsageError where it has none now."""
        raise UsageError(f"--on {self.name} has no jobs")

    def enter_all(self) -> dict[str, str]:
        """The same, of all jobs that lead a run of this user's now."""
        raise UsageError(f"--on {self.name} has no jobs")

    def queue(self) -> Queue:
        """Returns the queue of its hosts. Raises UsageError where it has none."""
        raise UsageError(f"--on {self.name} has no queue: it takes the hosts that are there")
