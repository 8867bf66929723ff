"""Holds what all events of a run share. It is a module of its own, as every verb imports it and the kinds take long to
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
    """Base. event: the kind's name in JSON. place: which documents have it. more: what its document has besides."""

    event: ClassVar[str] = ""
    place: ClassVar[str] = BOTH
    more: Mapping[str, Any] = spread()

    def __init_subclass__(cls, event: str = "", place: str = BOTH) -> None:
        cls.event, cls.place = event, place
        if event:
            KINDS[event] = cls

    def as_json(self, time: float, **about: Any) -> dict[str, Any]:
        """Returns the JSON object of documents. time: seconds since the epoch. about: the other fields of COMMON."""
        return {"event": self.event, "time": round(time, 3), **about, **plain(self)}


@dataclass(frozen=True, kw_only=True)
class Refused(RunEvent):
    """Base: what is wrong with a host, for which a run does not begin."""

    host: str | None
    kind: str
    message: str
    hint: str | None


@dataclass(frozen=True, kw_only=True)
class Begun(RunEvent):
    """Base: ranks run from now on. first_ranks: of each host. started: when the run was, in seconds since the epoch."""

    world_size: int
    first_ranks: Mapping[str, int]
    started: float | None = where_known()
