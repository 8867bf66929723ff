"""`fleet sync [SRC] [--to DEST]`: what is to go where."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.delivery.mirror import Mirror
from fleet.delivery.tree import scan
from fleet.errors import UsageError
from fleet.model import Inventory
from fleet.ops.plans import Files, Line, PerHost


@dataclass(frozen=True)
class SyncPlan(Mirror):
    """As delivery.mirror.Mirror has it."""

    def describe(self) -> dict[str, Any]:
        return {"source": str(self.source), "to": dict(self.dests)}

    def lines(self) -> Iterator[Line]:
        """What is deleted is known to the hosts alone."""
        tree = scan(self.source, whole=self.whole)
        files = Files([(path, entry[3]) for path, entry in tree.by_path.items()])
        yield f"code: {tree.root}, {files}; would be sent as far as a host does not have it:"
        yield files
        yield PerHost({name: [f"into {dest}"] for name, dest in self.dests.items()})
        yield "deleted there: what an earlier sync brought and is gone here, nothing else"


def plan(inventory: Inventory, source: Path, to: str | None, force: bool = False) -> SyncPlan:
    """Pure: DEST is --to, else the host's workdir, else the path of the head's current folder."""
    if to is not None and not to.strip():
        raise UsageError("--to is empty", hint="name a folder on the hosts, '~/work' for instance")
    here = str(Path.cwd())
    words = [str(source)] * (source != Path(".")) + (["--to", to] if to else [])
    return SyncPlan(
        inventory.hosts,
        source,
        {h.name: to or h.workdir or here for h in inventory.hosts},
        force=force,
        hint=f"to go on all the same: {shlex.join(['fleet', 'sync', *words, '--force'])}",
    )
