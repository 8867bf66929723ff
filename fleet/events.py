"""Defines the events that ops emit. cli/ renders them for the terminal or as JSON lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fleet.answers.event import RunEvent
from fleet.model import Result

Level = Literal["info", "warning", "error"]
Name = Literal["stdout", "stderr"]


@dataclass(frozen=True)
class Event:
    """Base of events. time: seconds since the epoch, on the head."""

    time: float = field(default_factory=time.time, kw_only=True)


@dataclass(frozen=True)
class Round(Event):
    """Reports that work on all of `hosts` begins, or, without hosts, work on this machine. what: the work as text
    ("installing"), or "" for the verb itself. Without hosts and `what`, it reports that no work is under way."""

    what: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Started(Event):
    """Reports that work on a host, or the next step of this work, began. what: a short phrase ("connecting",
    "installing")."""

    host: str
    what: str = ""


@dataclass(frozen=True)
class Output(Event):
    """Holds raw bytes that a process wrote. rank: the global rank, or None if the process is no rank."""

    host: str
    stream: Name
    data: bytes
    rank: int | None = None


@dataclass(frozen=True)
class Progress(Event):
    """Reports a counter: `done` of `total`. total: None if it is not known. unit: whether both are numbers of bytes or
    of things."""

    host: str | None
    what: str
    done: float
    total: float | None = None
    unit: Literal["bytes", "count"] = "bytes"


@dataclass(frozen=True)
class Finished(Event):
    """Reports the result of a host."""

    result: Result

    @property
    def host(self) -> str:
        return self.result.host


@dataclass(frozen=True)
class Notice(Event):
    """Reports a message to the user. happened: the events of a run that the message is about."""

    level: Level
    message: str
    host: str | None = None
    hint: str | None = None
    happened: tuple[RunEvent, ...] = ()

    @property
    def records(self) -> list[dict[str, Any]]:
        """Returns the notice's JSON records, one for each event in `happened`."""
        about = {"level": self.level, "host": self.host, "message": self.message}
        return [event.as_json(self.time, **about) for event in self.happened]

    @property
    def data(self) -> Mapping[str, Any]:
        """Returns the notice's record for --json (docs/json.md), or {} if it is about no event of a run."""
        return next(iter(self.records), {})

    def has(self, *kinds: type[RunEvent]) -> bool:
        """Returns whether the notice is about an event of one of these kinds."""
        return any(isinstance(event, kinds) for event in self.happened)


Emit = Callable[[Event], None]


def silent(event: Event) -> None:
    """Drops the event."""
