"""Compares the code in the folder in which a run is started with the code on its nodes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fleet.delivery.delivered import Delivered, find, folder_of
from fleet.delivery.source_id import ids_around
from fleet.engines import engine
from fleet.inventory.nodeset import fold
from fleet.model import grouped
from fleet.node.base.files import file_digest
from fleet.ops.run.plan.plan import Plan
from fleet.rules.units import counted


def names_of(plan: Plan) -> list[str]:
    """Returns the paths, below the workdir, at which the script may be."""
    script = plan.job.script
    is_module = engine(plan.job.engine).kind(plan.job) == "module"
    return [script.replace(".", "/") + end for end in (".py", "/__main__.py")] if is_module else [script]


class HeadCode:
    """Holds the code of the head for a plan. The code is read once, and only if a node has code that fleet
    delivered."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._file = Path(plan.request.cwd).absolute() / names_of(plan)[0]

    @cached_property
    def script(self) -> str | None:
        """Returns the sha256 of the script; None if it is not on this machine."""
        try:
            return file_digest(str(self._file)) if self._file.is_file() else None
        except OSError:
            return None

    @cached_property
    def _ids(self) -> Mapping[Path, Collection[str]]:
        return ids_around(Path(os.path.realpath(self._file.parent)))  # resolve() raises at a loop of links

    def is_ours(self, source: Mapping[str, Any]) -> bool:
        """Returns whether the folder from which code was delivered is on this machine."""
        return folder_of(source["id"], self._ids) is not None

    def _last(self, source_id: str) -> tuple[bool, Delivered | None, int]:
        """Returns (whether a source is on this machine, its last delivery, how many of the delivered files have changed
        since)."""
        root = folder_of(source_id, self._ids)
        last = find(source_id) if root else None
        return root is not None, last, last.changed(root) if root and last else 0

    def compare_with_nodes(self, facts: Mapping[str, Mapping[str, Any]]) -> tuple[bool | None, list[str]]:
        """Returns (whether all nodes have the present code of this machine, lines about nodes with older code). The
        first is None if that is not known. facts: host -> facts of preflight."""
        last_of = cache(self._last)
        same, remarks = set[bool | None](), list[tuple[str, str]]()
        for host, code in ((host, each.get("code") or {}) for host, each in facts.items()):
            name = (code.get("source") or {}).get("id")
            ours, last, changed = last_of(name) if name else (True, None, 0)
            if last is None or code.get("changed") is None:
                same.add(None if ours else False)
            elif code.get("manifest") != last.digest:
                same.add(False)
                remarks.append((f"code there is not what was synced last from here, at {last.when}: --sync", host))
            else:
                same.add(not changed and not code["changed"])
                differ = f"{counted(changed, 'file')} {'differs' if changed == 1 else 'differ'}"
                remarks += [(f"code there is of {last.when}, {differ} here: --sync", host)] * bool(changed)
        lines = [f"{fold(hosts)}: {text}" for text, hosts in grouped(remarks).items()]
        return (False if False in same else None if None in same or not same else True), lines
