"""Holds the answers of `fleet setup-ssh`, `fleet kill-port`, `fleet init`, `fleet top` and tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.codec import where_known


@dataclass(frozen=True)
class HostKeyOf:
    """Describes a host's key. how: why it is trusted: "known", "pinned", "trusted on first use", "replaced", ..."""

    type: str
    fingerprint: str
    how: str


@dataclass(frozen=True)
class SetUp:
    """Holds a host's key and the changes there. host_key: None if the host was not reached."""

    host_key: HostKeyOf | None = None
    changed: Sequence[str] = ()


@dataclass(frozen=True)
class Undone:
    """Holds the changes on a host, or on the head, by an undo or a setup."""

    changed: Sequence[str] = ()


@dataclass(frozen=True)
class BrokenPair:
    source: str = where_known("from")
    target: str = where_known("to")
    reason: str | None = None


@dataclass(frozen=True)
class Pairs:
    """Counts the connections that were verified: between hosts, and from the head to a host. failed: those that do not
    work."""

    verified: int = 0
    from_head: int = 0
    failed: Sequence[BrokenPair] = ()


@dataclass(frozen=True)
class SetUpAll:
    """Holds the whole answer of setup-ssh. changed: anything was changed. pairs: None for an undo."""

    changed: bool
    head: Undone
    pairs: Pairs | None = where_known()


@dataclass(frozen=True)
class PortHolder:
    """Describes a process that listens on a port. age: seconds. also: other ports on which it listens, as "8080/tcp".
    ended: it has ended. reason: why it was not ended."""

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
class HostSampled:
    """Holds the last sample of a host (protocol.messages.samples.Sampled). free, cold: indexes of the GPUs that are
    free, or busy at little power."""

    sample: Mapping[str, Any] | None = None
    free: Sequence[int] = ()
    cold: Sequence[int] = ()


@dataclass(frozen=True)
class InitFound:
    """Holds what `fleet init` found on a host. found: fields that the inventory did not have yet. lacks: messages about
    what was not found."""

    found: Mapping[str, Any]
    lacks: Sequence[str]


@dataclass(frozen=True)
class Proposed:
    """Holds the path of the inventory that `fleet init` proposes. next: command lines to copy."""

    inventory: str
    next: Sequence[str]


@dataclass(frozen=True)
class TaskEnded:
    """Describes a host where a task failed. where: FILE:LINE of the task. command: the one that failed."""

    where: str | None = where_known()
    command: str | None = where_known()
