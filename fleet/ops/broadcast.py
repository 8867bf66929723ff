"""Plans `fleet sync --data PATH[:DEST]`, which sends files to every host by a pipelined broadcast."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.delivery.chain.transfer import Broadcast, Item, run
from fleet.delivery.manifest import scan
from fleet.delivery.own_files import consent
from fleet.errors import UsageError
from fleet.model import Host, Inventory
from fleet.ops.plans import Files, Line, PerHost
from fleet.requests.sync import SyncData
from fleet.rules.units import bytes_of, size_text

__all__ = ["BroadcastPlan", "Item", "plan", "run"]


@dataclass(frozen=True)
class BroadcastPlan(Broadcast):
    """Extends delivery.chain.transfer.Broadcast with the text of a plan."""

    def describe(self) -> dict[str, Any]:
        data = [{"source": str(item.source), "to": dict(item.dests)} for item in self.items]
        origin = {"from": self.origin.name} if self.origin else {}
        return {"data": data, "limit": self.limit, **origin}

    def lines(self) -> Iterator[Line]:
        rest = "would be sent as far as a host does not have it:"
        manifest = None if self.origin else scan([item.source for item in self.items], self.copy_unsafe_links)
        for number, item in enumerate(self.items):
            if manifest is None:
                yield f"data: {item.source} of host {self.origin and self.origin.name}; {rest}"
            else:
                own = [entry for entry in manifest.files if entry[0] == number]
                files = Files([(entry[1] or item.source.name, entry[4]) for entry in own])
                yield f"data: {item.source}, {files}; {rest}"
                yield files
            yield PerHost({name: [f"to {dest}"] for name, dest in item.dests.items()})
        limit = f", at most {size_text(self.limit)}/s" if self.limit else ""
        yield f"by a chain of the hosts{limit}; deletes nothing"


def plan(inventory: Inventory, request: SyncData, origin: Host | None = None) -> BroadcastPlan:
    """Returns the plan. `PATH:DEST/` puts PATH inside DEST. `PATH:DEST` makes DEST a copy of the file or folder PATH.
    `PATH` alone goes to the same path, or below the host's workdir if PATH is relative. Looks at this machine's files
    only to distinguish a colon in PATH from the one before DEST. origin: the host that has PATH, below its workdir if
    PATH is relative; all other hosts get PATH. None: this machine has PATH. Raises UsageError for an invalid
    request."""
    hosts = tuple(host for host in inventory.hosts if origin is None or host.name != origin.name)
    if not hosts:
        raise UsageError(
            f"host {inventory.names[0]} has it, no other is selected", hint="name the hosts that get it: -w HOSTS"
        )
    items = []
    for text in request.data:
        path, dest = _split(text, here=origin is None)
        source = _source(path, origin)
        items.append(Item(source, {host.name: _dest(host, path, source, dest) for host in hosts}))
    for host in hosts:
        seen: dict[str, Path] = {}
        for item in items:
            to = item.dests[host.name]
            if to in seen:
                raise UsageError(
                    f"{seen[to]} and {item.source} both go to {to}",
                    host=host.name,
                    hint="end DEST with '/' to put them inside it",
                )
            seen[to] = item.source
    argv = [arg for text in request.data for arg in ("--data", text)] + (["--from", origin.name] if origin else [])
    argv += ["--limit", request.limit] if request.limit else []
    argv += ["--copy-unsafe-links"] if request.copy_unsafe_links else []
    hint = consent(shlex.join(["fleet", "sync", *argv]))
    rate = None if request.limit is None else parse_rate(request.limit)
    return BroadcastPlan(
        hosts,
        tuple(items),
        rate,
        origin,
        hint=hint,
        force=request.force,
        keep=request.keep,
        copy_unsafe_links=request.copy_unsafe_links,
    )


def _source(path: str, origin: Host | None) -> Path:
    if origin is not None:
        return Path(_dest(origin, path, Path(path if path[0] == "~" else Path(path).absolute()), None))
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"--data {path!r}: there is no such user", hint="'~/...' is your own home") from error


def _split(text: str, here: bool) -> tuple[str, str | None]:
    path, colon, given = text.rpartition(":")
    is_path = not colon or here and os.path.exists(os.path.expanduser(text))
    path, dest = (text, None) if is_path else (path, given)
    if not path or dest == "" or "\0" in text:
        raise UsageError(f"--data {text!r}: {'PATH' if not path else 'DEST'} is empty", hint="--data PATH[:DEST]")
    return path, dest


def _dest(host: Host, path: str, source: Path, dest: str | None) -> str:
    if dest is None:
        if path[0] in "/~" or host.workdir is None:
            return str(source)
        if ".." in Path(path).parts:
            raise UsageError(f"--data {path!r} leads out of the workdir", hint="say where it goes: --data PATH:DEST")
        return f"{host.workdir.rstrip('/')}/{Path(path)}"
    if dest.endswith("/"):
        name = source.name or source.resolve().name
        if name in ("", ".."):
            raise UsageError(f"--data {path!r} has no name of its own", hint="--data PATH:DEST, without the last '/'")
        return f"{dest}{name}"
    return dest


def parse_rate(text: str) -> int:
    """Returns the bytes a second of "100MB", "1.5GiB" or "200mbit" (bits), with or without "/s"."""
    number = text.strip().lower().removesuffix("/s")
    rate = bytes_of(number.removesuffix("bit"))
    if rate is None:
        raise UsageError(f"--limit {text!r} is not a rate", hint="for instance 100MB (bytes a second) or 200mbit")
    rate /= 8 if number.endswith("bit") else 1
    if rate < 1000:
        raise UsageError(f"--limit {text!r} is too little", hint="1kB is the least")
    return int(rate)
