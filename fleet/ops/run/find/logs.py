"""Runs `fleet logs RUN`, which shows the output of a run's ranks from its folder on this machine. Missing parts are
fetched into the folder first, from the nodes or by another process of this machine. For --since, the nodes find the
offset at which the output begins, because they have recorded how their logs grew."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from fleet.answers.runs import LogsHere
from fleet.errors import EXIT_OK, FleetError, HostFailed, UsageError
from fleet.events import Notice
from fleet.model import Host, Inventory, Report, Result
from fleet.node.gang.ends import ranks_text
from fleet.ops.run.find.find import FoundRun, find, no_answer, warn_of_missing
from fleet.ops.run.find.here import chosen
from fleet.ops.run.follow.fetch import fetch
from fleet.ops.run.follow.follow import Follower, FollowOptions
from fleet.ops.run.kept.documents import SUMMARY, RunState, documents_of, read_object, written
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.job import SCRIPT, Asking, has_ended, run_here, submitted
from fleet.ops.run.kept.local import no_such_rank, platform_of
from fleet.ops.run.kept.logs import stream_of
from fleet.ops.run.kept.reader import LogsPlan, NewEvents, Reader, look_until
from fleet.ops.sessions import ANSWER_SECONDS, Sessions
from fleet.protocol.messages.run import Since
from fleet.protocol.messages.run_specs import FollowSpec
from fleet.protocol.messages.values import Failed
from fleet.protocol.state import is_log
from fleet.runtime import Runtime
from fleet.sources import SOURCES
from fleet.sources.queue import State
from fleet.transport.base import Cancel
from fleet.transport.program import call

LEFT_SECONDS = 5.0  # another process may take over the fetching of logs in this time


def run(plan: LogsPlan, runtime: Runtime) -> Report:
    """Emits the logs as Output events. A host's result is an error if its logs could not be fetched."""
    with ExitStack() as at_end:
        sessions, request = at_end.enter_context(closing(Sessions(runtime))), plan.request
        run_id, found = _named(plan, runtime, sessions)
        planned, summary, wrong = documents_of(request.runs / run_id)
        known = _ranks_of(request.runs / run_id, [planned, summary, found.about if found else {}])
        if request.ranks is not None and known and not request.ranks <= known:
            raise no_such_rank(run_id, request.ranks - known, known)
        folder = RunFolder.open(request.runs, run_id)
        at_end.callback(folder.release)
        if wrong:
            runtime.emit(Notice("warning", f"run {run_id}: {wrong}"))
        reader, events = (
            Reader(folder.of(request.attempt), request, runtime.emit, only=plan.only),
            NewEvents(folder.path / "events.jsonl"),
        )
        if not reader.folder.is_dir():
            last = folder.attempt
            hint = f"its last attempt is {last}, its first one 0" if last else "it was never started again"
            raise UsageError(f"run {run_id} has no logs of an attempt {request.attempt} here", hint=hint)
        untold: Mapping[str, FleetError] = {}
        errors: Mapping[str, FleetError] = {}
        if request.since is not None and found is not None:
            reader.begins, untold = offsets_since(request.since, found, sessions)
        if found is not None and folder.held:
            errors = fetch_logs(found, folder, runtime, sessions, once=True)

        def poll() -> None:
            if request.follow:
                for notice in events.read():
                    runtime.emit(notice)
            reader.poll()

        if request.follow and folder.held and found is not None and found.live:
            errors = _fetch_meanwhile(found, folder, runtime, sessions, poll)
        is_others = not folder.held or submitted(folder.path) is not None
        folder.release()  # another process may need it, and a user in a pager may not read on for long
        if request.follow and is_others:
            wait_for(folder, runtime, poll)
        poll()
    if request.ranks is not None and (text := _without(request.ranks, reader.folder, plan.only)):
        runtime.emit(Notice("warning", f"run {run_id}: {text}"))
    errors = {**errors, **untold}
    hosts = [host.name for host in plan.hosts] if found is None else list(found.parts)
    results = tuple(Result(name, name not in errors, error=errors.get(name)) for name in hosts)
    code = max((error.exit_code for error in errors.values()), default=EXIT_OK)
    return Report("logs", results, code, answer=LogsHere(run_id, str(folder.path)))


def _fetch_meanwhile(
    found: FoundRun, folder: RunFolder, runtime: Runtime, sessions: Sessions, poll: Callable[[], object]
) -> Mapping[str, FleetError]:
    """Fetches the logs in a thread, and shows them meanwhile. While no user reads the output, only the showing waits:
    the thread still releases the folder to a process that requests it."""

    def fetch_all() -> Mapping[str, FleetError]:
        errors = fetch_logs(found, folder, runtime, sessions, once=False)
        if folder.is_requested():
            folder.release()
        return errors

    with ThreadPoolExecutor(1) as apart:
        fetching = apart.submit(fetch_all)
        look_until(fetching.done, poll, Cancel())
    return fetching.result()


def _named(plan: LogsPlan, runtime: Runtime, sessions: Sessions) -> tuple[str, FoundRun | None]:
    """Returns (the run's id, the run as its nodes report it). The second is None if all logs are here, or if another
    process fetches the logs, or if no node knows the run any more."""
    run_id, here = local(plan.request.run, plan.request.runs, plan.request.since)
    if here:
        return run_id, None
    runs, answers = find(plan.inventory, runtime, live=False, sessions=sessions)
    known = {each.run_id: each for each in runs}
    run_id = run_id or chosen(plan.request.run, runs, answers, plan.request.runs).run_id
    found = known.get(run_id)
    if found is None and plan.request.since is not None:
        raise UsageError(
            f"run {run_id}: when its lines were written is known to its nodes alone, and none of them knows it",
            hint=f"fleet logs {run_id} --tail 100",
            kind="unknown-times",
        )
    if found is None and (where := no_answer(answers)):
        runtime.emit(Notice("warning", f"run {run_id}: what is here already; {where}"))
    if found is not None:
        warn_of_missing(found, answers, runtime.emit)
    return run_id, found


def local(argument: str, runs_dir: Path, since: float | None) -> tuple[str, bool]:
    """Returns (the run of this machine that the argument names, or ""; whether its nodes need not be queried). The
    nodes are not queried if all logs are here, or if another process of this machine fetches the logs."""
    run_id = run_here(argument, runs_dir)
    if run_id is None:
        return "", False
    path = runs_dir / run_id
    all_here = RunState(path).followed or submitted(path) is not None or platform_of(path) is not None
    is_whole = not read_object(path / SUMMARY).get("incomplete_logs", True)
    return run_id, since is None and (all_here or is_whole)


def hosts_here(folder: Path) -> Inventory:
    """Returns the hosts whose logs are in a run's folder, as an inventory of their names."""
    found = sorted({host for host, _ in _logs(folder, "**/*")})
    return Inventory(tuple(Host(name, name) for name in found), source=str(folder))


def _logs(folder: Path, pattern: str) -> Iterator[tuple[str, int | None]]:
    """Yields the host and the rank of each log in a folder."""
    paths = (path for path in folder.glob(pattern) if is_log(path.name))
    return ((path.parent.name, stream_of(path.name)[0]) for path in paths)


def _ranks_of(folder: Path, documents: Sequence[Mapping[str, Any]]) -> set[int]:
    """Returns the known ranks of a run."""
    world = max(known for each in documents if isinstance(known := each.get("world_size", 0), int))
    return {*range(world), *(rank for _, rank in _logs(folder, "**/*") if rank is not None)}


def _without(ranks: frozenset[int], folder: Path, only: tuple[str, ...] | None) -> str:
    """Returns a sentence with the ranks that have no log here; "" if all have one, or none has. only: the hosts whose
    logs count."""
    here = {rank for host, rank in _logs(folder, "*/*") if rank is not None and (only is None or host in only)}
    if not here or ranks <= here:
        return ""
    return f"no log of {ranks_text(sorted(ranks - here))} is here, but of {ranks_text(sorted(here))}"


def fetch_logs(
    found: FoundRun,
    folder: RunFolder,
    runtime: Runtime,
    sessions: Sessions,
    *,
    once: bool,
) -> dict[str, FleetError]:
    """Fetches the missing parts of the logs from all nodes at once. once: fetches only what the nodes have now. Returns
    host -> error for hosts whose logs are not complete. Returns {} if the user cancels, or if another process requests
    the folder to coordinate the run."""
    folder.begin(found.attempt)
    attempt = None if found.about["least"] else found.attempt
    spec: FollowSpec = {"run": found.run_id, "offsets": {}, "attempt": attempt, "once": once, "passive": True}
    how = FollowOptions(spec, runtime.transport)

    def is_given_up() -> bool:
        return runtime.cancel.is_set() or folder.is_requested()

    def is_late(follower: Follower) -> bool:
        return is_given_up() or once and follower.silent_since is not None  # its logs can be fetched next time

    ends = fetch(found.hosts.values(), folder, how, is_late, sessions.take_all(found.hosts))
    if is_given_up():
        return {}

    def lacks(name: str) -> FleetError:
        why, hint = ends[name].why, None
        if ends[name].blocked:
            why, hint = f"{folder.path}: {ends[name].blocked}", f"when there is room: fleet logs {found.run_id}"
        elif why is None:
            why = f"{folder.path / name} holds more than the node does"
            hint = f"move it away; 'fleet logs {found.run_id}' fetches them again"
        return HostFailed(f"its logs are not complete here: {why}", host=name, kind="incomplete", hint=hint)

    return {name: lacks(name) for name, end in ends.items() if not end.complete}


def wait_for(folder: RunFolder, runtime: Runtime, poll: Callable[[], object]) -> None:
    """Waits while another process of this machine, or the run's job, writes the logs. Returns when the run is over, or
    when no process has written them for LEFT_SECONDS. poll: shows new output."""
    job, seen = submitted(folder.path), time.monotonic()
    asking = Asking(SOURCES.get(job.on).queue(), (job.job, folder.path / SCRIPT)) if job is not None else None

    def is_over() -> bool:
        nonlocal seen
        if asking is not None:
            asking.look()
            return has_ended(folder.path) or asking.last.state is State.OVER
        if written(folder.path):
            seen = time.monotonic()
            return False
        return (folder.path / SUMMARY).exists() or time.monotonic() - seen > LEFT_SECONDS

    look_until(lambda: runtime.cancel.is_set() or is_over(), poll, runtime.cancel)


def offsets_since(
    when: float, found: FoundRun, sessions: Sessions
) -> tuple[Mapping[str, Mapping[str, int]], Mapping[str, FleetError]]:
    """Returns ({host: {log: the offset of the output since `when`}}, errors by host). when: seconds since the epoch, by
    this machine's clock."""
    ago = time.time() - when  # a duration, because the nodes' clocks may differ from this one

    def ask(host: Host) -> Mapping[str, int]:
        spec = {"run": found.run_id, "ago": ago}
        answer = call(sessions.get(host), "run.times", spec, Since | Failed, timeout=ANSWER_SECONDS)
        if answer["event"] == "failed":
            raise HostFailed(answer["message"], host=host.name, hint=answer["hint"])
        return answer["offsets"]

    return sessions.each(tuple(found.hosts.values()), ask, "since")
