"""Defines what a source implements whose hosts are requested, and waited for."""

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
    """The state of a job. name: as the queue calls it (PENDING, TIMEOUT). reason: why it waits, in the queue's text.
    begins: when it is expected to, in seconds since the epoch. code: the exit code of a run that the queue ended."""

    state: State
    name: str = ""
    reason: str = ""
    begins: float | None = None
    code: int = 1

    @property
    def waits(self) -> str:
        """Why, for people; "" where it does not."""
        return f"{self.name}, {self.reason}" if self.state is State.WAITING else ""


Job = tuple[str, Path]  # its number, and the script in its run's folder


class Queue(ABC):
    """Connects to a batch system. what: its name, in messages. poll: seconds between two requests about a job; a site
    forbids more frequent ones."""

    what: str
    poll: tuple[float, float]  # at first, and in the end

    @abstractmethod
    def script(self, ask: Submit) -> str:
        """A batch script, which runs under the system's own command, too. UsageError for what cannot be requested."""

    @abstractmethod
    def submit(self, script: Path, output: Path, cancel: Cancel) -> str:
        """Its job's number. output: of the job, if the script names no other file. UsageError, with the queue's own
        message, where it is refused. ConnectError where it is not known whether it was taken: `cancel` ends the wait.
        """

    def of_line(self, job: str, line: int) -> str:
        """Returns the number of the job of another line, where several runs were requested at once: `job` is the first
        one's."""
        raise UsageError("--each is for --on slurm", hint="start one run after the other")

    @abstractmethod
    def find(self, script: Path) -> str | None:
        """Returns the number of this user's job that runs the script; None where the queue has none. ConnectError where
        that is not known now."""

    @abstractmethod
    def look(self, jobs: Collection[Job]) -> dict[Job, Standing]:
        """Returns the state of each of them, by one query. A job that runs another script is not the one that is meant:
        numbers come again, and another cluster has the same."""

    @abstractmethod
    def output(self, job: str, script: Path) -> Path | None:
        """Returns the file that has what the script prints; None where the queue does not show it."""

    @abstractmethod
    def check(self, job: str, script: Path) -> None:
        """Raises UsageError where the queue does not show that it is this user's job of this script: a run's folder may
        be anybody's, and numbers come again. ConnectError where it does not answer."""

    @abstractmethod
    def cancel(self, job: str, script: Path) -> None:
        """Takes a job out of the queue, or ends it. UsageError, ConnectError where the queue does not confirm it, and
        as check()."""

    @abstractmethod
    def interrupt(self, job: str, script: Path) -> None:
        """Sends SIGINT to what runs on the first node. Errors as of cancel()."""

    @abstractmethod
    def requeue(self, job: str) -> None:
        """Puts a job back into the queue that runs. UsageError, ConnectError where the queue does not confirm it."""
