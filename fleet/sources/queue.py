"""Defines the interface of a batch queue, from which fleet requests hosts for a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.errors import UsageError

if TYPE_CHECKING:
    from fleet.requests.submit import Submit
    from fleet.transport.base import Cancel


class State(Enum):
    """Holds the state of a job. UNKNOWN: the queue does not answer now."""

    WAITING = "waiting"
    RUNNING = "running"
    OVER = "over"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Standing:
    """Holds the state of a job, and details of it. name: the queue's name of the state (PENDING, TIMEOUT). reason: why
    the job waits, in the queue's text. begins: its expected start, in seconds since the epoch. code: the exit code of a
    run that the queue ended."""

    state: State
    name: str = ""
    reason: str = ""
    begins: float | None = None
    code: int = 1

    @property
    def waits(self) -> str:
        """Returns why the job waits, as text; "" if it does not wait."""
        return f"{self.name}, {self.reason}" if self.state is State.WAITING else ""


Job = tuple[str, Path]  # the job's number, and the script in its run's folder


class Queue(ABC):
    """Connects to a batch system. what: its name in messages. poll: the shortest and the longest pause between two
    requests about a job, in seconds; sites forbid more frequent requests."""

    what: str
    poll: tuple[float, float]  # the first pause, and the longest one

    @abstractmethod
    def script(self, ask: Submit) -> str:
        """Returns a batch script, which the system's own command can submit, too. Raises UsageError for an invalid
        request."""

    @abstractmethod
    def submit(self, script: Path, output: Path, cancel: Cancel) -> str:
        """Submits a script, and returns its job's number. output: the job's output file, if the script names no other.
        Raises UsageError with the queue's own message if the job is refused, and ConnectError if it is not known
        whether the queue has the job. cancel: ends the wait for the queue's confirmation."""

    def of_line(self, job: str, line: int) -> str:
        """Returns the job number of a line's run, if --each requested a run for each line of a file. job: the number of
        the first line's job."""
        raise UsageError("--each is for --on slurm", hint="start one run after the other")

    @abstractmethod
    def find(self, script: Path) -> str | None:
        """Returns the number of this user's job that runs the script, or None if the queue has none. Raises
        ConnectError if the queue does not answer now."""

    @abstractmethod
    def look(self, jobs: Collection[Job]) -> dict[Job, Standing]:
        """Returns the state of each job, by one query. Ignores a job with the same number that runs another script: a
        queue uses numbers again, and other clusters have the same numbers."""

    @abstractmethod
    def output(self, job: str, script: Path) -> Path | None:
        """Returns the file of the script's output, or None if the queue does not show it."""

    @abstractmethod
    def check(self, job: str, script: Path) -> None:
        """Raises UsageError if the queue does not show that the job is this user's and runs this script: a run's folder
        may belong to any user, and numbers are used again. Raises ConnectError if the queue does not answer."""

    @abstractmethod
    def cancel(self, job: str, script: Path) -> None:
        """Removes a job from the queue, or ends it. Raises UsageError or ConnectError if the queue does not confirm
        this, and the errors of check()."""

    @abstractmethod
    def interrupt(self, job: str, script: Path) -> None:
        """Sends SIGINT to the job's batch step, on its first node. Raises as cancel() does."""

    @abstractmethod
    def requeue(self, job: str) -> None:
        """Puts a running job back into the queue. Raises UsageError or ConnectError if the queue does not confirm
        this."""
