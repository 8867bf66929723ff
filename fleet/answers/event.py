"""Defines what all events of a run share. It is a separate module: every verb imports it, and the kinds are slow to
import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fleet.codec import plain, spread, where_known

BOTH, STREAM, FILE = "both", "`--json` alone", "`events.jsonl` alone"
KINDS: dict[str, type[RunEvent]] = {}


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """The base of events. event: the kind's name in JSON. place: which documents have it. more: other fields of its
    document."""

    event: ClassVar[str] = ""
    place: ClassVar[str] = BOTH
    more: Mapping[str, Any] = spread()

    def __init_subclass__(cls, event: str = "", place: str = BOTH) -> None:
        cls.event, cls.place = event, place
        if event:
            KINDS[event] = cls

    def as_json(self, time: float, **about: Any) -> dict[str, Any]:
        """Returns the event's JSON object. time: seconds since the epoch. about: the other fields of COMMON."""
        return {"event": self.event, "time": round(time, 3), **about, **plain(self)}


@dataclass(frozen=True, kw_only=True)
class Refused(RunEvent):
    """The base of events about a host that keeps a run from beginning."""

    host: str | None
    kind: str
    message: str
    hint: str | None


@dataclass(frozen=True, kw_only=True)
class Begun(RunEvent):
    """The base of events after which ranks run. first_ranks: host -> its first rank. started: when the run was started,
    in seconds since the epoch."""

    world_size: int
    first_ranks: Mapping[str, int]
    started: float | None = where_known()
