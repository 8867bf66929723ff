"""Plans `fleet sync [SRC] [--to DEST]`, which syncs code to every host. `fleet sync` without arguments executes the
inventory's `sync:` section. Another user may have written the inventory, which names files of this machine. So the user
must agree to send these files. The user's consent is kept in ~/.fleet/agreed: each line is the sha256 of an inventory's
path and of the paths that may be sent for it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet import own
from fleet.delivery.delivered import last_of
from fleet.delivery.mirror import Mirror, run
from fleet.delivery.own_files import consent
from fleet.inventory.section import Section, read_section
from fleet.model import Inventory
from fleet.ops.plans import Files, Line, PerHost
from fleet.protocol.state import HOME
from fleet.requests.sync import Sync

AGREED, MOST_AGREED = "agreed", 1000  # a file in ~/.fleet, and the most lines that it keeps
FLAGS = ("keep", "delete_excluded", "all", "copy_unsafe_links")
__all__ = ["Section", "SyncPlan", "agreed", "outside", "plan", "read_section", "remember", "run"]


@dataclass(frozen=True)
class SyncPlan(Mirror):
    """Extends delivery.mirror.Mirror with the text of a plan."""

    def describe(self) -> dict[str, Any]:
        return {"source": str(self.source), "to": dict(self.dests)}

    def lines(self) -> Iterator[Line]:
        """Yields the lines of --dry-run. Only the hosts know which files are deleted."""
        tree = self.read()
        files = Files([(path, entry[3]) for path, entry in tree.by_path.items()])
        yield f"code: {tree.root}, {files}; would be sent as far as a host does not have it:"
        yield files
        yield PerHost({name: [f"into {dest}"] for name, dest in self.dests.items()})
        yield from [tree.rules.left_out] if tree.rules and tree.rules.left_out else ()
        yield from tree.notices
        if last := last_of(tree.root, self.request.source_id):
            sent = {entry[0] for entry in tree.entries}
            rows = {entry[0]: entry for entry in last.entries if entry[1] != "d" and entry[0] not in sent}
            excluded = set() if self.request.delete_excluded else tree.excluded([row[:2] for row in rows.values()])
            doomed = Files([(path, row[3]) for path, row in rows.items() if path not in excluded])
            yield f"would be deleted, as it is gone since the last sync from here, of {last.when}: {doomed}"
            yield doomed
        gone = "gone or left out" if self.request.delete_excluded else "gone, not only left out,"
        yield f"deleted there: what fleet delivered, is as it was delivered, and is {gone} here"
        yield "a host stops where its own files are in the way" + (", which are replaced" if self.request.force else "")


def plan(inventory: Inventory, request: Sync) -> SyncPlan:
    """Returns the plan. Pure. DEST is --to, or else the host's workdir, or else the path of the head's current
    folder."""
    source, to = Path(request.source), request.to
    here = str(Path.cwd())
    src = f"./{source}" if str(source).startswith("-") else str(source)  # a typed "-x" would be an option
    argv = [src] * (source != Path(".")) + (["--to", to] if to else [])
    argv += [f"--{name.replace('_', '-')}" for name in FLAGS if getattr(request, name)]
    argv += [f"--source-id={request.source_id}"] if request.source_id else []
    return SyncPlan(
        inventory.hosts,
        source,
        {h.name: to or h.workdir or here for h in inventory.hosts},
        request,
        hint=consent(shlex.join(["fleet", "sync", *argv])),
        command=(shlex.join(["fleet", "sync", *argv]), ""),
    )


def outside(inventory: str, sources: Sequence[Path]) -> list[Path]:
    """Returns the sources that are not in the inventory's folder and are not the current folder itself."""
    home, here = Path(inventory).resolve().parent, Path.cwd()
    real = [path.expanduser().resolve() for path in sources]
    return [path for path in dict.fromkeys(real) if path != here and not path.is_relative_to(home)]


def _line(inventory: str, paths: Sequence[Path]) -> str:
    parts = [str(Path(inventory).resolve()), *sorted(map(str, paths))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def agreed(home: Path, inventory: str, paths: Sequence[Path]) -> bool:
    """Returns whether the user has agreed to send these paths for this inventory."""
    return _line(inventory, paths) in own.lines_of(home / HOME / AGREED)


def remember(home: Path, inventory: str, paths: Sequence[Path]) -> None:
    """Records that the user agrees to send these paths for this inventory."""
    own.add_line(home, AGREED, _line(inventory, paths), MOST_AGREED)
