"""What happens, as values. Ops emit them; cli/ renders them as a terminal view, JSON lines or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fleet.model import Result

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class Event:
    """Base: `time` is seconds since the epoch on the head."""

    time: float = field(default_factory=time.time, kw_only=True)


@dataclass(frozen=True)
class Round(Event):
    """Work begins that goes over all of `hosts`; none: it is done on this machine. what: in words ("installing"), ""
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
    """Something worth saying: level "info", "warning" or "error"; data goes to JSON, each of several on its own."""

    level: Level
    message: str
    host: str | None = None
    hint: str | None = None
    data: Mapping[str, Any] | Sequence[Mapping[str, Any]] = field(default_factory=dict)

    @property
    def records(self) -> Sequence[Mapping[str, Any]]:
        """As JSON has it: a record an event."""
        return [self.data] if isinstance(self.data, Mapping) else self.data

    @property
    def kinds(self) -> frozenset[str]:
        """Of the events of a run that it tells of (ops/run/kept/kinds.py)."""
        return frozenset(str(record["event"]) for record in self.records if "event" in record)


Emit = Callable[[Event], None]


def silent(event: Event) -> None:
    """An Emit that drops everything."""
