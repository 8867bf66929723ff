"""Holds the answers of `fleet setup-ssh`, `fleet kill-port`, `fleet init` and tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.codec import where_known


@dataclass(frozen=True)
class HostKeyOf:
    """how: "known", "pinned", "trusted on first use", "replaced", ..."""

    type: str
    fingerprint: str
    how: str


@dataclass(frozen=True)
class SetUp:
    """Holds a host's key, None where the host was not reached, and what was changed there."""

    host_key: HostKeyOf | None = None
    changed: Sequence[str] = ()


@dataclass(frozen=True)
class Undone:
    """Holds what was changed on a host, or on this machine."""

    changed: Sequence[str] = ()


@dataclass(frozen=True)
class BrokenPair:
    source: str = where_known("from")
    target: str = where_known("to")
    reason: str | None = None


@dataclass(frozen=True)
class Pairs:
    """Ways between hosts, and from this machine, that were verified."""

    verified: int = 0
    from_head: int = 0
    failed: Sequence[BrokenPair] = ()


@dataclass(frozen=True)
class SetUpAll:
    """changed: whether anything was. head: this machine. pairs: None of an undo."""

    changed: bool
    head: Undone
    pairs: Pairs | None = where_known()


@dataclass(frozen=True)
class PortHolder:
    """A process that listens. ended: it is gone. reason: why it was left alone."""

    port: int
    protocol: str
    address: str
    pid: int | None
    user: str
    command: str | None
    run_id: str | None
    age: float | None
    also: Sequence[str]
    ended: bool
    reason: str | None


@dataclass(frozen=True)
class Listening:
    listeners: Sequence[PortHolder] = ()


@dataclass(frozen=True)
class Preview:
    """Nothing was done."""

    dry_run: bool = True


@dataclass(frozen=True)
class Asked:
    """Holds a host's facts. found: what the inventory did not give; lacks: what could not be found."""

    found: Mapping[str, Any]
    lacks: Sequence[str]


@dataclass(frozen=True)
class Proposed:
    """The inventory's file; next: lines to copy."""

    inventory: str
    next: Sequence[str]


@dataclass(frozen=True)
class TaskEnded:
    """Describes a host where a task failed: FILE:LINE, and the command."""

    where: str | None = where_known()
    command: str | None = where_known()
