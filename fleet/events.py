"""Defines what happens, as values. Ops emit them; cli/ renders them as a terminal view, JSON lines or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fleet.answers.event import RunEvent
from fleet.model import Result

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class Event:
    """Base: `time` is seconds since the epoch on the head."""

    time: float = field(default_factory=time.time, kw_only=True)


@dataclass(frozen=True)
class Round(Event):
    """Work begins that goes over all of `hosts`; none: it is done on this machine. what: as text ("installing"), ""
    for the verb itself; none of both: nothing is under way any more."""

    what: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Started(Event):
    """Work on a host began, or goes on with something else. what: a short phrase ("connecting", "installing")."""

    host: str
    what: str = ""


@dataclass(frozen=True)
class Output(Event):
    """Raw bytes a process wrote. stream: "stdout" or "stderr"; rank: the global rank, or None."""

    host: str
    stream: Literal["stdout", "stderr"]
    data: bytes
    rank: int | None = None


@dataclass(frozen=True)
class Progress(Event):
    """A counter moved: done of total, None when the total is not known. unit: bytes, or a count of something."""

    host: str | None
    what: str
    done: float
    total: float | None = None
    unit: Literal["bytes", "count"] = "bytes"


@dataclass(frozen=True)
class Finished(Event):
    """A host is through, with its result."""

    result: Result

    @property
    def host(self) -> str:
        return self.result.host


@dataclass(frozen=True)
class Notice(Event):
    """Something worth saying: level "info", "warning" or "error". happened: the events of a run that it is about."""

    level: Level
    message: str
    host: str | None = None
    hint: str | None = None
    happened: tuple[RunEvent, ...] = ()

    @property
    def records(self) -> list[dict[str, Any]]:
        """Returns its JSON records, one for each event."""
        about = {"level": self.level, "host": self.host, "message": self.message}
        return [event.as_json(self.time, **about) for event in self.happened]

    @property
    def data(self) -> Mapping[str, Any]:
        """Returns its record for --json (docs/json.md); it is empty where the notice is about no event of a run."""
        return next(iter(self.records), {})

    def has(self, *kinds: type[RunEvent]) -> bool:
        """Is true where it is about an event of one of these kinds."""
        return any(isinstance(event, kinds) for event in self.happened)


Emit = Callable[[Event], None]


def silent(event: Event) -> None:
    """An Emit that drops everything."""
