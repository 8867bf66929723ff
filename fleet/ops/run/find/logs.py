"""`fleet logs RUN`: what its ranks wrote, from the run's folder on this machine, what is missing is fetched first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any

from fleet.answers.runs import LogsShown
from fleet.errors import EXIT_OK, FleetError, UsageError
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.model import Host, Inventory, Report, Result
from fleet.node.gang.ends import ranks_text
from fleet.ops.run.find.bring import bring, offsets_since, wait_for
from fleet.ops.run.find.find import FoundRun, find, warn_of_missing
from fleet.ops.run.find.here import chosen
from fleet.ops.run.follow.fetch import POLL_SECONDS
from fleet.ops.run.kept.documents import read_object
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.job import run_here, submitted
from fleet.ops.run.kept.local import DOCUMENTS, broken, platform_of
from fleet.ops.run.kept.logs import LOG, stream_of
from fleet.ops.run.kept.reader import LogsPlan, NewEvents, Reader
from fleet.ops.run.kept.state import followed
from fleet.ops.run.kept.word import no_such_rank
from fleet.ops.sessions import Sessions
from fleet.runtime import Runtime


def run(plan: LogsPlan, runtime: Runtime) -> Report:
    """Emits Output. A host's result is an error where its logs could not be fetched."""
    with closing(Sessions(runtime)) as sessions:
        return _shown(plan, runtime, sessions)


def _shown(plan: LogsPlan, runtime: Runtime, sessions: Sessions) -> Report:
    run_id, found = _named(plan, runtime, sessions)
    known = _ranks_of(plan.request.runs / run_id, found)
    if plan.request.ranks is not None and known and not plan.request.ranks <= known:
        raise no_such_rank(run_id, plan.request.ranks - known, known)
    folder = RunFolder.open(plan.request.runs, run_id)
    if wrong := broken(plan.request.runs / run_id):
        runtime.emit(Notice("warning", f"run {run_id}: {wrong}"))
    untold: Mapping[str, FleetError] = {}
    errors: Mapping[str, FleetError] = {}
    try:
        reader = Reader(folder.of(plan.request.attempt), plan, runtime.emit)
        if not reader.folder.is_dir():
            last = folder.attempt
            hint = f"its last attempt is {last}, its first one 0" if last else "it was never started again"
            raise UsageError(f"run {run_id} has no logs of an attempt {plan.request.attempt} here", hint=hint)
        if plan.request.since is not None and found is not None:
            reader.begins, untold = offsets_since(plan.request.since, found, sessions)
        if found is not None and folder.held:
            errors = bring(found, folder, runtime, sessions, once=True)
        events = NewEvents(folder.path / "events.jsonl")

        def poll() -> None:
            if plan.request.follow:
                for notice in events.read():
                    runtime.emit(notice)
            reader.poll()

        if plan.request.follow and folder.held and found is not None and found.live:
            errors = _fetched_meanwhile(found, folder, runtime, sessions, poll)
        is_others = not folder.held or submitted(folder.path) is not None
        folder.release()  # for long no user may read on what is shown, as in a pager
        if plan.request.follow and is_others:
            wait_for(folder, runtime, poll)
        poll()
    finally:
        folder.release()
    if plan.request.ranks is not None and (text := _without(plan.request.ranks, reader.folder, plan.only)):
        runtime.emit(Notice("warning", f"run {run_id}: {text}"))
    errors = {**errors, **untold}
    hosts = [host.name for host in plan.hosts] if found is None else list(found.parts)
    results = tuple(Result(name, name not in errors, error=errors.get(name)) for name in hosts)
    code = max((error.exit_code for error in errors.values()), default=EXIT_OK)
    return Report("logs", results, code, answer=LogsShown(run_id, str(folder.path)))


def _fetched_meanwhile(
    found: FoundRun, folder: RunFolder, runtime: Runtime, sessions: Sessions, poll: Callable[[], object]
) -> Mapping[str, FleetError]:
    """Does what bring() does, and shows what comes. The two are separate: a process that requests the folder gets it,
    also while no process reads what is shown."""

    def bring_all() -> Mapping[str, FleetError]:
        errors = bring(found, folder, runtime, sessions, once=False)
        if folder.asked_for():
            folder.release()
        return errors

    with ThreadPoolExecutor(1) as apart:
        bringing = apart.submit(bring_all)
        while not bringing.done():
            poll()
            wait([bringing], POLL_SECONDS)
    return bringing.result()


def _named(plan: LogsPlan, runtime: Runtime, sessions: Sessions) -> tuple[str, FoundRun | None]:
    """The run, and what its nodes know of it; None where all of it is here, or fetched by another process, or
    nothing is known there any more."""
    run_id, here = local(plan.request.run, plan.request.runs, plan.request.since)
    if here:
        return run_id, None
    runs, answers = find(plan.inventory, runtime, live=False, sessions=sessions)
    known = {each.run_id: each for each in runs}
    run_id = run_id or chosen(plan.request.run, runs, answers, plan.request.runs).run_id
    found = known.get(run_id)
    silent = [result.host for result in answers if not result.ok]
    if found is None and plan.request.since is not None:
        raise UsageError(
            f"run {run_id}: when its lines were written is known to its nodes alone, and none of them knows it",
            hint=f"fleet logs {run_id} --tail 100",
            kind="unknown-times",
        )
    if found is None and silent:
        text = f"run {run_id}: what is here already; no answer from {fold(silent)}"
        runtime.emit(Notice("warning", text))
    if found is not None:
        warn_of_missing(found, answers, runtime.emit)
    return run_id, found


def local(word: str, runs_dir: Path, since: float | None) -> tuple[str, bool]:
    """(the run of this machine that the argument means, or ""; whether no node need be queried for what is to be shown
    of it: all is here, or another process of this machine fetches it)."""
    run_id = run_here(word, runs_dir)
    if run_id is None:
        return "", False
    path = runs_dir / run_id
    all_here = followed(path) or submitted(path) is not None or platform_of(path) is not None
    whole = all_here or is_whole(path / "summary.json")
    return run_id, since is None and whole


def hosts_here(folder: Path) -> Inventory:
    """Returns the hosts that a run's folder on this machine has logs of, by their names."""
    found = {path.parent.name for path in folder.glob("**/*") if LOG.fullmatch(path.name)}
    return Inventory(tuple(Host(name, name) for name in sorted(found)), source=str(folder))


def _ranks_of(folder: Path, found: FoundRun | None) -> set[int]:
    """Returns the ranks of a run, as far as it is known how many."""
    documents: list[Mapping[str, Any]] = [read_object(folder / name) for name in DOCUMENTS]
    if found is not None:
        documents.append(found.about)
    world = max(known for each in documents if isinstance(known := each.get("world_size", 0), int))
    logs = [path.name for path in folder.glob("**/*") if LOG.fullmatch(path.name)]
    return {*range(world), *(rank for rank, _ in map(stream_of, logs) if rank is not None)}


def _without(ranks: frozenset[int], folder: Path, only: tuple[str, ...] | None) -> str:
    """Returns in a sentence which have no log here, of these hosts; "" where all have, or no rank at all has."""
    paths = [path for path in folder.glob("*/*") if only is None or path.parent.name in only]
    logs = [path.name for path in paths if LOG.fullmatch(path.name)]
    here = {rank for rank, _ in map(stream_of, logs) if rank is not None}
    if not here or ranks <= here:
        return ""
    return f"no log of {ranks_text(sorted(ranks - here))} is here, but of {ranks_text(sorted(here))}"


def is_whole(summary: Path) -> bool:
    """Is true where a run is over and all of its logs are here."""
    return not read_object(summary).get("incomplete_logs", True)
