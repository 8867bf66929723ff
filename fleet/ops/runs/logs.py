"""`fleet logs RUN`: what its ranks wrote, from the run's folder on this machine, what is missing is brought first."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.errors import EXIT_OK, FleetError
from fleet.events import Notice, Output, silent
from fleet.inventory.nodeset import fold
from fleet.model import Host, Inventory, Report, Result
from fleet.ops.launch.folder import RunFolder, read_object
from fleet.ops.launch.follow import Follower, Heard
from fleet.ops.launch.logs import LOG, stream_of
from fleet.ops.launch.start import Sessions
from fleet.ops.plans import Line
from fleet.ops.runs.find import FoundRun, choose, chosen, find, missing
from fleet.ops.runs.local import broken, followed, names
from fleet.ops.runs.since import offsets_since
from fleet.rules.stacks import ranks_text
from fleet.runtime import Runtime

POLL_SECONDS = 0.1
CHUNK = 1 << 20
SILENCE_SECONDS = 45.0


@dataclass(frozen=True)
class LogsPlan:
    """word: what names the run. ranks: only these, and nothing of the engines; None: all. err: standard errors alone.
    only: hosts. tail: lines of each log to begin with, None: all. since: what was written from then on, seconds since
    the epoch. attempt: of a run that was started again, None: the last. follow: until the run is over."""

    inventory: Inventory
    word: str
    runs_dir: Path
    follow: bool = False
    only: tuple[str, ...] | None = None
    ranks: frozenset[int] | None = None
    err: bool = False
    tail: int | None = None
    since: float | None = None
    attempt: int | None = None

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.inventory.hosts

    def describe(self) -> dict[str, Any]:
        return {"run": self.word, "logs": str(self.runs_dir), "follow": self.follow}

    def lines(self) -> Iterator[Line]:
        yield f"shows the logs of run {self.word}"

    def wants(self, host: str, name: str) -> bool:
        rank, stream = stream_of(name)
        return (
            (self.only is None or host in self.only)
            and (rank is not None if self.ranks is None else rank in self.ranks)
            and (stream == "stderr" or not self.err)
        )


@dataclass
class Reader:
    """Emits what is new in the log files of a run's folder. begins: host -> log -> where it begins, None: all at 0;
    hosts that are not there are left out."""

    folder: Path
    plan: LogsPlan
    emit: Callable[[Output], None]
    begins: Mapping[str, Mapping[str, int]] | None = None
    offsets: dict[tuple[Path, int], int] = field(default_factory=dict)

    def poll(self) -> bool:
        """Whether there was any."""
        moved = False
        for path in sorted(self.folder.glob("*/*"), key=_in_rank_order):
            if not LOG.fullmatch(path.name) or not self.plan.wants(path.parent.name, path.name):
                continue
            if self.begins is not None and path.parent.name not in self.begins:
                continue
            rank, stream = stream_of(path.name)
            file = path, path.stat().st_ino  # another attempt's is another file
            if file not in self.offsets:
                tail = 0 if self.plan.tail is None else tail_offset(path, self.plan.tail)
                self.offsets[file] = max(tail, (self.begins or {}).get(path.parent.name, {}).get(path.name, 0))
            with path.open("rb") as f:
                f.seek(self.offsets[file])
                while data := f.read(CHUNK):
                    self.offsets[file] += len(data)
                    self.emit(Output(path.parent.name, "stdout" if stream == "stdout" else "stderr", data, rank))
                    moved = True
        if self.begins is not None:  # another attempt's logs are new as a whole
            self.begins = dict.fromkeys(self.begins, {})
        return moved


@dataclass
class NewEvents:
    """What is new in a run's events.jsonl at `path`."""

    path: Path
    offset: int = 0

    def read(self) -> Iterator[dict[str, Any]]:
        try:
            with self.path.open("rb") as f:
                f.seek(self.offset)
                lines, end, _ = f.read().rpartition(b"\n")
        except OSError:
            return
        self.offset += len(lines + end)
        for line in lines.splitlines():
            with suppress(ValueError):  # half a line, of a disk that was full
                record = json.loads(line)
                if isinstance(record, dict) and {"event", "time"} <= record.keys():
                    yield record


def _in_rank_order(path: Path) -> tuple[bool, int, str, str]:
    rank = stream_of(path.name)[0] if LOG.fullmatch(path.name) else None
    return rank is None, rank or 0, path.parent.name, path.name


def tail_offset(path: Path, lines: int) -> int:
    """Where the last `lines` lines of a file begin."""
    with path.open("rb") as f:
        end = at = f.seek(0, os.SEEK_END)
        count = 0
        while at > 0:
            size = min(CHUNK, at)
            at -= size
            f.seek(at)
            block = f.read(size)
            place = len(block) - (at + size == end and block.endswith(b"\n"))
            while (place := block.rfind(b"\n", 0, place)) >= 0:
                count += 1
                if count == lines:
                    return at + place + 1
    return 0 if lines else end


def run(plan: LogsPlan, runtime: Runtime) -> Report:
    """Emits Output. A host's result is an error where its logs could not be brought."""
    with closing(Sessions(runtime)) as sessions:
        return _shown(plan, runtime, sessions)


def _shown(plan: LogsPlan, runtime: Runtime, sessions: Sessions) -> Report:
    run_id, found = _named(plan, runtime, sessions)
    folder = RunFolder.open(plan.runs_dir, run_id)
    if wrong := broken(plan.runs_dir / run_id):
        runtime.emit(Notice("warning", f"run {run_id}: {wrong}"))
    untold: Mapping[str, FleetError] = {}
    errors: Mapping[str, FleetError] = {}
    try:
        reader = Reader(folder.logs_of(plan.attempt), plan, runtime.emit)
        if plan.since is not None and found is not None:
            reader.begins, untold = offsets_since(plan.since, found, sessions)
        if found is not None and folder.held:
            errors = _bring(found, folder, runtime, sessions, lambda: None, once=True)
        events = NewEvents(folder.path / "events.jsonl")

        def poll() -> None:
            if plan.follow:
                for record in events.read():
                    runtime.emit(Notice("info", "", data=record, time=record["time"]))
            reader.poll()

        poll()
        if plan.follow:
            if not folder.held:
                _watch(folder, runtime, poll)
            elif found is not None and found.live:
                errors = _bring(found, folder, runtime, sessions, poll, once=False)
            poll()
    finally:
        folder.release()
    if plan.ranks is not None and (said := _without(plan.ranks, reader.folder)):
        runtime.emit(Notice("warning", f"run {run_id}: {said}"))
    errors = {**errors, **untold}
    hosts = [host.name for host in plan.hosts] if found is None else list(found.parts)
    results = tuple(Result(name, name not in errors, error=errors.get(name)) for name in hosts)
    code = max((error.exit_code for error in errors.values()), default=EXIT_OK)
    return Report("logs", results, code, {"run": run_id, "logs": str(folder.path)})


def _named(plan: LogsPlan, runtime: Runtime, sessions: Sessions) -> tuple[str, FoundRun | None]:
    """The run, and what its nodes know of it; None where all of it is here, or brought here by another process, or
    nothing is known there any more."""
    run_id, here = local(plan.word, plan.runs_dir, follow=plan.follow, since=plan.since)
    if here:
        return run_id, None
    runs, asked = find(plan.inventory, runtime, live=False, sessions=sessions)
    known = {each.run_id: each for each in runs}
    if plan.follow:
        with suppress(FleetError):
            run_id = choose(plan.word, [each.run_id for each in runs if each.live])
    run_id = run_id or chosen(plan.word, runs, asked).run_id
    found = known.get(run_id)
    silent = [result.host for result in asked if not result.ok]
    if found is None and plan.since is not None:
        raise FleetError(
            f"run {run_id}: when its lines were written is known to its nodes alone, and none of them knows it",
            hint=f"fleet logs {run_id} --tail 100",
            kind="unknown-times",
        )
    if found is None and silent:
        text = f"run {run_id}: what is here already; no answer from {fold(silent)}"
        runtime.emit(Notice("warning", text))
    if found is not None and (lacks := missing(found, asked)) is not None:
        runtime.emit(Notice("warning", lacks))
    return run_id, found


def local(word: str, runs_dir: Path, *, follow: bool, since: float | None) -> tuple[str, bool]:
    """(the run of this machine that the word means, or ""; whether no node need be asked for what is to be shown of it:
    all is here, or another process of this machine brings it)."""
    try:
        run_id = choose(word, names(runs_dir, followed_first=True))
    except FleetError:
        return "", False
    named = run_id == word or not follow  # what is to be followed may be live elsewhere, as for attach and stop
    whole = followed(runs_dir / run_id) or named and is_whole(runs_dir / run_id / "summary.json")
    return run_id, since is None and whole


def hosts_here(folder: Path) -> Inventory:
    """Those that a run's folder on this machine has logs of, by their names."""
    found = {path.parent.name for path in folder.glob("**/*") if LOG.fullmatch(path.name)}
    return Inventory(tuple(Host(name, name) for name in sorted(found)), source=str(folder))


def _without(ranks: frozenset[int], folder: Path) -> str:
    """Which of them have no log here, in a sentence; "" where all have, or no rank at all has."""
    logs = [path.name for path in folder.glob("*/*") if LOG.fullmatch(path.name)]
    here = {rank for rank, _ in map(stream_of, logs) if rank is not None}
    if not here or ranks <= here:
        return ""
    return f"no log of {ranks_text(sorted(ranks - here))} is here, but of {ranks_text(sorted(here))}"


def is_whole(summary: Path) -> bool:
    """Whether a run is over and all of its logs are here."""
    return not read_object(summary).get("incomplete_logs", True)


def _bring(
    found: FoundRun,
    folder: RunFolder,
    runtime: Runtime,
    sessions: Sessions,
    meanwhile: Callable[[], object],
    *,
    once: bool,
) -> dict[str, FleetError]:
    """What is not here yet, from all nodes at once; once: what there is now. Hosts that it did not come from."""
    heard: list[Heard] = []
    open_ones = sessions.take_all(found.hosts)
    followers = [
        Follower(
            found.run_id,
            host,
            open_ones.get(name),
            runtime.transport,
            folder.node(name),
            heard.append,
            silent,
            SILENCE_SECONDS,
            once=once,
            passive=True,
        )
        for name, host in found.hosts.items()
    ]
    for follower in followers:
        follower.start()
    while any(follower.is_alive() for follower in followers) and not runtime.cancel.is_set():
        meanwhile()
        for follower in followers if once else ():
            if follower.silent_since is not None:
                follower.give_up()  # what it has will be there next time
        runtime.cancel.wait(POLL_SECONDS)
    for follower in followers:
        follower.give_up()
        follower.join()
    whole = {word.host for word in heard if word.what == "over" and word.data["complete"]}
    said = {word.host: word.data["reason"] for word in heard if word.what == "dropped"}
    return {
        name: FleetError(
            f"its logs are not complete here: {said.get(name, 'interrupted')}", host=name, kind="incomplete"
        )
        for name in found.hosts
        if name not in whole and not runtime.cancel.is_set()
    }


def _watch(folder: RunFolder, runtime: Runtime, poll: Callable[[], object]) -> None:
    """Somebody else on this machine brings the logs, until nobody does."""
    while not folder.hold() and not runtime.cancel.is_set():
        poll()
        time.sleep(POLL_SECONDS)
