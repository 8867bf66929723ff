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
    """Holds the condition of a host, as its source reports it. reason: why the host is not used, or "" if it is
    used."""

    state: str
    reason: str = ""


class Source(ABC):
    """Provides hosts. name: the value of --on for this source. transport: the value of --transport for its hosts.
    options: options of `fleet launch` that request hosts from a queue. on_paper: whether a launch only writes the
    request, and does not submit it."""

    name: str
    transport: str
    options: Sequence[Option] = ()
    on_paper = False
    asked = ""  # the cases in which its options apply, for --help

    @abstractmethod
    def detect(self, environ: Mapping[str, str]) -> str | None:
        """Returns a name for the allocation that this process is in ("job 12 of Slurm"), or None if it is in none."""

    @abstractmethod
    def inventory(self, environ: Mapping[str, str]) -> Inventory:
        """Returns the hosts of this process's allocation. Raises UsageError if this process is in none, or if its
        variables are not valid."""

    def known(self, partition: str | None) -> tuple[Inventory, Mapping[str, Condition]]:
        """Returns all hosts, or those of a partition, and the condition of each. Raises UsageError or HostFailed."""
        raise UsageError(f"{self.name} knows the hosts of what it is in, and no others", hint=f"--on {self.name}")

    def scope(self, environ: Mapping[str, str]) -> str:
        """Returns the scope in which the names of the source's hosts are unique, such as a cluster."""
        return self.name

    def nodes_for(self, options: Sequence[str], environ: Mapping[str, str]) -> tuple[str, Collection[str]]:
        """Returns (scope, names) of the hosts from which the source's queue chooses for a request with these options.
        The names are empty if they are not known."""
        return self.name, ()

    def run_of(self, environ: MutableMapping[str, str]) -> tuple[str | None, int]:
        """Returns (the run for which this process was started, or None; how often the queue has restarted its job).
        Removes the run from the variables, because child processes are not started for this run."""
        return None, 0

    def job(self, environ: Mapping[str, str]) -> str | None:
        """Returns the number of the job that this process is in, as its queue's submit() returns it, or None if it is
        in no job."""
        return None

    def requeued(self, environ: Mapping[str, str]) -> bool:
        """Returns whether the queue is to begin this process's job again if the time limit ends its run."""
        return False

    def ended(self, environ: Mapping[str, str], *, signalled: bool) -> JobEnd | None:
        """Returns why the queue ends this process's job, or begins it again. Returns None if it does neither.
        signalled: whether this process has received a signal."""
        return None

    def enter(self, job: str) -> dict[str, str]:
        """Returns the variables with which a process outside of a job takes the job's hosts for its own. Raises
        UsageError if the job has no hosts now."""
        raise UsageError(f"--on {self.name} has no jobs")

    def enter_all(self) -> dict[str, str]:
        """Returns the variables of enter() for all jobs that now lead a run of this user."""
        raise UsageError(f"--on {self.name} has no jobs")

    def queue(self) -> Queue:
        """Returns the queue of the source's hosts. Raises UsageError if the source has no queue."""
        raise UsageError(f"--on {self.name} has no queue: it takes the hosts that are there")
