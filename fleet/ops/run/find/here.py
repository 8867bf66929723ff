"""Which run is meant by a verb that ends or follows one: of those that have a folder here, though no node may know of
it any more. Another one is named by its whole id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from fleet.codec import Misfit, decode
from fleet.errors import FleetError, UsageError
from fleet.model import Inventory, Result
from fleet.ops.run.find.find import FoundRun, chosen
from fleet.ops.run.kept.documents import RUN, read_object, restarts_of
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.job import is_ours
from fleet.ops.run.kept.local import names
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.kept.word import choose
from fleet.protocol.messages.run import About

KeptHost = TypedDict("KeptHost", {"node_rank": int, "ranks": list[int]})
# of run.json
Kept = TypedDict(
    "Kept",
    {
        "engine": str,
        "owner": str,
        "started": float,
        "world_size": int,
        "master": str,
        "hosts": dict[str, KeptHost],
    },
)


def chosen_here(
    word: str,
    runs: Sequence[FoundRun],
    asked: Sequence[Result],
    runs_dir: Path,
    inventory: Inventory,
    ask: Callable[[str], bool | None],
) -> FoundRun:
    """The run that a word means, of what find() found, or of what this machine knows; errors as chosen(). ask: whether
    that run is meant, where a folder tells so that this user's fleet did not make."""
    found = _chosen_here(word, runs, asked, runs_dir, inventory)
    folder = runs_dir / found.run_id
    if found.run_id == word or is_ours(folder) or ask(f"Your fleet did not make {folder}. Is that run meant?"):
        return found
    raise UsageError(
        f"{word}: that is run {found.run_id} by a folder in {runs_dir} alone, which your fleet did not make",
        hint=f"name it by its whole id: {found.run_id}",
    )


def _chosen_here(
    word: str, runs: Sequence[FoundRun], asked: Sequence[Result], runs_dir: Path, inventory: Inventory
) -> FoundRun:
    here = names(runs_dir)
    known = {run.run_id: run for run in runs}
    try:
        return chosen(word, [run for run in runs if run.run_id in here or run.run_id == word], asked, runs_dir)
    except FleetError as error:
        why = error
    run_id = _meant(word, here)
    if run_id and (found := from_folder(runs_dir / run_id, inventory)) is not None:
        return found
    if run_id is None and (other := _meant(word, list(known))):
        about = known[other].about
        whose = f", started by {about['owner']}," if about else ""
        text = f"{word}: no run that has a folder in {runs_dir}; {other}{whose} has none there"
        raise UsageError(text, hint=f"name it by its whole id: {other}")
    raise why


def _meant(word: str, run_ids: list[str]) -> str | None:
    try:
        return choose(word, run_ids)
    except UsageError:
        return None


def hosts_of(word: str, runs_dir: Path, inventory: Inventory) -> Inventory:
    """The hosts that a run of this folder was started on, where its folder tells: nobody waits for others."""
    told = read_object(runs_dir / (_meant(word, names(runs_dir)) or word) / RUN)
    kept = [it for each in (told, *restarts_of(told)) if isinstance(it := each.get("hosts"), dict | list)]
    hosts = tuple(host for host in inventory.hosts if any(host.name in it for it in kept))
    return replace(inventory, hosts=hosts or inventory.hosts)


def from_folder(path: Path, inventory: Inventory) -> FoundRun | None:
    """A run whose end is not known here, and that no node reports; None where its folder does not say on which it was
    started."""
    summary = read_object(path / "summary.json")
    if summary.get("end") or not summary.get("unknown", True):
        return None
    try:
        kept = decode(Kept, read_object(path / RUN))
    except Misfit:
        return None
    hosts = sorted(kept["hosts"].items(), key=lambda item: item[1]["node_rank"])
    about: About = {
        "engine": kept["engine"],
        "script": "",
        "owner": kept["owner"],
        "started": kept["started"],
        "nnodes": len(hosts),
        "world_size": kept["world_size"],
        "master": kept["master"],
        "hosts": {name: (min(host["ranks"], default=0), len(host["ranks"])) for name, host in hosts},
        "attempt": RunFolder(path).attempt,
        "max_restarts": 0,
        "spares": 0,
        "stall_timeout": None,
        "least": 0,
        "stop_grace": RunRecord.stop_grace,
        "max_log": 0,
    }
    return FoundRun(path.name, {}, {}, (), {host.name: host for host in inventory.hosts}, kept=about)
