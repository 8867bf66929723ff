"""Finds the run that an argument names among those that nodes report. A verb that ends or follows a run also finds a
run that only has a folder here. Such a verb finds a run without a folder here only by its whole id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from fleet.codec import Misfit, decode
from fleet.errors import Ambiguous, ConnectError, FleetError, UsageError
from fleet.model import Inventory, Result
from fleet.ops.run.find.find import FoundRun, no_answer
from fleet.ops.run.kept.documents import RUN, SUMMARY, read_object, restarts_of
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.job import is_ours
from fleet.ops.run.kept.local import choose, names, run_named
from fleet.ops.run.kept.record import about_of
from fleet.protocol.state import LATEST

KeptHost = TypedDict("KeptHost", {"node_rank": int, "ranks": list[int]})
# fields of run.json
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


def chosen(argument: str, runs: Sequence[FoundRun], results: Iterable[Result], runs_dir: Path) -> FoundRun:
    """Returns the run that an argument names, among the runs of find() and those that have a folder here. Raises
    UsageError, or ConnectError if hosts that may know the run did not answer."""
    known = {run.run_id: run for run in runs}
    silent = [result for result in results if result.error is not None]
    try:
        run_id = choose(argument, names(runs_dir), known)
        if run_id not in known:
            raise UsageError(f"no host knows of run {run_id}", hint=f"fleet logs {run_id}")
        return known[run_id]
    except Ambiguous:
        raise
    except UsageError as error:
        if not silent or argument == LATEST and not names(runs_dir):
            raise
        text, first = f"{error.message}; {no_answer(silent)}", silent[0].error
        raise ConnectError(text, hint=first.hint if first else None, kind="unreachable") from None


def chosen_here(
    argument: str,
    runs: Sequence[FoundRun],
    results: Sequence[Result],
    runs_dir: Path,
    inventory: Inventory,
    ask: Callable[[str], bool | None],
) -> FoundRun:
    """Returns the run that an argument names, among the runs of find() or the records on this machine. Raises the
    errors of chosen(). ask: asks the user to confirm a run that was found by a folder which this user's fleet did not
    make. Raises UsageError if the user does not confirm it."""
    here, known = names(runs_dir), {run.run_id: run for run in runs}
    try:
        found = chosen(
            argument, [run for run in runs if run.run_id in here or run.run_id == argument], results, runs_dir
        )
    except FleetError:
        run_id = run_named(argument, here)
        if run_id is None and (other := run_named(argument, list(known))):
            owner = known[other].about["owner"]
            whose = f", started by {owner}," if owner else ""
            text = f"{argument}: no run that has a folder in {runs_dir}; {other}{whose} has none there"
            raise UsageError(text, hint=f"name it by its whole id: {other}") from None
        if run_id is None or (kept := from_folder(runs_dir / run_id, inventory)) is None:
            raise
        found = kept
    folder = runs_dir / found.run_id
    if found.run_id == argument or is_ours(folder) or ask(f"Your fleet did not make {folder}. Is that run meant?"):
        return found
    raise UsageError(
        f"{argument}: that is run {found.run_id} by a folder in {runs_dir} alone, which your fleet did not make",
        hint=f"name it by its whole id: {found.run_id}",
    )


def hosts_of(argument: str, runs_dir: Path, inventory: Inventory) -> Inventory:
    """Returns the hosts that a run was started on, by its folder, so that no other host is waited for. Returns all
    hosts if the folder names none."""
    record = read_object(runs_dir / (run_named(argument, names(runs_dir)) or argument) / RUN)
    kept = [it for each in (record, *restarts_of(record)) if isinstance(it := each.get("hosts"), dict | list)]
    hosts = tuple(host for host in inventory.hosts if any(host.name in it for it in kept))
    return replace(inventory, hosts=hosts or inventory.hosts)


def from_folder(path: Path, inventory: Inventory) -> FoundRun | None:
    """Returns a run that no node reports, from its folder; None if the folder has the run's end, or does not record its
    hosts."""
    summary = read_object(path / SUMMARY)
    if summary.get("end") or not summary.get("unknown", True):
        return None
    try:
        kept = decode(Kept, read_object(path / RUN))
    except Misfit:
        return None
    hosts = sorted(kept["hosts"].items(), key=lambda item: item[1]["node_rank"])
    ranks = {name: (min(host["ranks"], default=0), len(host["ranks"])) for name, host in hosts}
    fields = {name: kept[name] for name in ("engine", "owner", "started", "world_size", "master")}
    about = about_of(ranks, attempt=RunFolder(path).attempt, **fields)
    return FoundRun(path.name, {}, {}, (), {host.name: host for host in inventory.hosts}, kept=about)
