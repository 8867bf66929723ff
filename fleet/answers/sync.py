"""Holds the answers of `fleet sync`, `fleet get` and `fleet build`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.codec import where_known


@dataclass(frozen=True)
class Synced:
    """Describes a host's folder `to`, as the node reports it. same: it is the source itself. shared_with: the host that
    has the same folder. own: the node's own files in the way. source: the source that delivered there before, with what
    would be lost. overwritten: existing files whose bytes have changed."""

    to: str
    same: bool | None = where_known()
    shared_with: str | None = where_known()
    own: Sequence[str] | None = where_known()
    source: Mapping[str, Any] | None = where_known()
    sent: int | None = where_known()
    bytes: int | None = where_known()
    deleted: int | None = where_known()
    kept: Sequence[str] | None = where_known()
    left: Sequence[str] | None = where_known()
    entries: int | None = where_known()
    changed: int | None = where_known()
    replaced: int | None = where_known()
    overwritten: int | None = where_known()
    aside: Sequence[str] | None = where_known()


@dataclass(frozen=True)
class Mirrored:
    """Describes the source of a sync. skipped: paths that are no file, folder or link. hard_links: number of files that
    are hard links. ignored: text about what patterns leave out."""

    source: str
    entries: int
    skipped: Sequence[str] = ()
    hard_links: int = 0
    ignored: str | None = where_known()


@dataclass(frozen=True)
class Received:
    """Describes a host of a broadcast: where its items are, and what it received. problems: [path, why]."""

    to: Sequence[str] = ()
    shared_with: str | None = where_known()
    files: int | None = where_known()
    bytes: int | None = where_known()
    left: Sequence[str] | None = where_known()
    aside: Sequence[str] | None = where_known()
    problems: Sequence[Sequence[str]] | None = where_known()


@dataclass(frozen=True)
class Broadcasted:
    """Describes a broadcast. sent: the bytes that left the source. cuts: hosts that were lost: {"host", "behind",
    "lost_seconds"}. source: the host that had it."""

    sources: Sequence[str]
    files: int
    size: int
    sent: int
    cuts: Sequence[Mapping[str, Any]] = ()
    skipped: Sequence[str] = ()
    hard_links: int = 0
    source: str | None = where_known("from")


@dataclass(frozen=True)
class HasImage:
    """Describes what a host's runtime has: the id of the image of that name. state: "there", "loaded" or "unknown": it
    is the sha256 of a manifest, where that of a configuration is known, or the other way round."""

    runtime: str
    id: str | None
    state: str


@dataclass(frozen=True)
class Image:
    """Describes an image. id: as its source prints it. sent: the bytes that left the source. source: the host
    that had it."""

    image: str
    id: str
    sent: int = 0
    source: str | None = where_known("from")


@dataclass(frozen=True)
class HasWheels:
    """Describes a host's interpreter, and its wheels: name -> "installed", "there", ..."""

    python: str | None = where_known()
    wheels: Mapping[str, str] | None = where_known()
    seconds: float | None = where_known()


@dataclass(frozen=True)
class WheelFile:
    name: str
    version: str
    file: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class Wheels:
    wheels: Sequence[WheelFile] = ()


@dataclass(frozen=True)
class Built:
    """Describes a build: its id, the host that built, its log on this machine; then the wheel, and what was
    installed."""

    wheels: Sequence[WheelFile] | None = where_known()
    build: str | None = where_known()
    on: str | None = where_known()
    log: str | None = where_known()
    arch: Sequence[str] | None = where_known()
    ops: Sequence[str] | None = where_known()
    wheel: str | None = where_known()
    sha256: str | None = where_known()


@dataclass(frozen=True)
class Got:
    """Describes what a host sent, what this machine had already, and the place. `to` is None if the host has nothing of
    it."""

    files: int = 0
    bytes: int = 0
    same: int = 0
    to: str | None = None


@dataclass(frozen=True)
class GotAll:
    what: str
    to: str
