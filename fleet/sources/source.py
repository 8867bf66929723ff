"""Defines the interface of a source of hosts."""

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
    """Holds the condition of a host, as its source reports it. reason: why the host is not used; "" if it is."""

    state: str
    reason: str = ""


class Source(ABC):
    """Provides hosts. name: its value of --on. transport: the hosts' value of --transport. options: options of
    `fleet launch` that request hosts from a queue. on_paper: a launch writes the request, and does not submit it."""

    name: str
    transport: str
    options: Sequence[Option] = ()
    on_paper = False
    asked = ""  # the cases in which its options apply, for --help

    @abstractmethod
    def detect(self, environ: Mapping[str, str]) -> str | None:
        """Returns a name for the allocation that this process is in ("job 12 of Slurm"); None if it is in none."""

    @abstractmethod
    def inventory(self, environ: Mapping[str, str]) -> Inventory:
        """Returns the hosts of this process's allocation. Raises UsageError if it is in none, or its variables are not
        valid."""

    def known(self, partition: str | None) -> tuple[Inventory, Mapping[str, Condition]]:
        """Returns all hosts, or those of a partition, and the condition of each. Raises UsageError or HostFailed."""
        raise UsageError(f"{self.name} knows the hosts of what it is in, and no others", hint=f"--on {self.name}")

    def scope(self, environ: Mapping[str, str]) -> str:
        """Returns the scope in which the names of its hosts are unique."""
        return self.name

    def nodes_for(self, options: Sequence[str], environ: Mapping[str, str]) -> tuple[str, Collection[str]]:
        """Returns the scope and the names of the hosts from which its queue chooses for a request with these options.
        There are no names if they are not known."""
        return self.name, ()

    def run_of(self, environ: MutableMapping[str, str]) -> tuple[str | None, int]:
        """Returns (the run that this process was started for, or None; how often its queue has restarted it). Removes
        the run from the variables, because child processes are not started for it."""
        return None, 0

    def job(self, environ: Mapping[str, str]) -> str | None:
        """Returns the number of the job that this process is in, as its queue's submit() returns it; or None."""
        return None

    def requeued(self, environ: Mapping[str, str]) -> bool:
        """Returns whether the queue is to begin this process's job again if the time limit ends its run."""
        return False

    def ended(self, environ: Mapping[str, str], *, signalled: bool) -> JobEnd | None:
        """Returns why the queue ends this process's job, or begins it again; None if it does neither. signalled: this
        process has received a signal."""
        return None

    def enter(self, job: str) -> dict[str, str]:
        """Returns the variables that give a process outside of a job the job's hosts. Raises UsageError if the job has
        none now."""
        raise UsageError(f"--on {self.name} has no jobs")

    def enter_all(self) -> dict[str, str]:
        """Returns the variables of enter() for all jobs that now lead a run of this user."""
        raise UsageError(f"--on {self.name} has no jobs")

    def queue(self) -> Queue:
        """Returns the queue of its hosts. Raises UsageError if it has none."""
        raise UsageError(f"--on {self.name} has no queue: it takes the hosts that are there")
