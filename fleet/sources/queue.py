"""Defines what a source implements whose hosts are requested, and waited for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleet.requests.submit import Submit


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


class Queue(ABC):
    """Connects to a batch system. what: its name, in messages. poll: seconds between two requests about a job; a site
    forbids more frequent ones."""

    what: str
    poll: tuple[float, float]  # at first, and in the end

    @abstractmethod
    def script(self, ask: Submit) -> str:
        """A batch script, which runs under the system's own command, too. UsageError for what cannot be requested."""

    @abstractmethod
    def submit(self, script: Path, run: str, output: Path) -> str:
        """Its job's number. run: the run that it is for, which the job is to know. output: of the job, if the script
        names no other file. UsageError, with the queue's own message, where it is refused."""

    @abstractmethod
    def look(self, jobs: Sequence[str]) -> dict[str, Standing]:
        """The state of each of them, by one query."""

    @abstractmethod
    def check(self, job: str, script: Path) -> None:
        """Raises UsageError where the queue does not show that it is this user's job of this script: a run's folder may
        be anybody's, and numbers come again."""

    @abstractmethod
    def cancel(self, job: str, script: Path) -> None:
        """Takes a job out of the queue, or ends it. UsageError as check()."""

    @abstractmethod
    def interrupt(self, job: str, script: Path) -> None:
        """Sends SIGINT to what runs on the first node. UsageError as check()."""
