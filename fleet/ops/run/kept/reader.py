"""Reads what is new in a run's folder: in its logs, as Output, and in its events."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from fleet.answers.event import RunEvent
from fleet.answers.run_events import Cleaned, NodeStarted, RunOver, Submitted, Version, of_record
from fleet.events import Event, Notice, Output
from fleet.ops.plans import Line, OnHosts
from fleet.ops.run.kept.logs import LOG, stream_of
from fleet.own import open_own
from fleet.protocol.state import ATTEMPT
from fleet.requests.runs import Logs

E = TypeVar("E", bound=RunEvent)
CHUNK = 1 << 20
MOST_EVENTS = 1 << 28  # bytes of the file; one that is larger is none of fleet's
HUSHED = (RunOver, NodeStarted, Cleaned, Submitted, Version)  # reported by the onlooker itself, or to no one
MOST_LINE = 1 << 20  # of an event; what is longer is none


@dataclass(frozen=True)
class LogsPlan(OnHosts):
    """only: hosts, None: all."""

    request: Logs
    only: tuple[str, ...] | None = None

    def describe(self) -> dict[str, Any]:
        return {"run": self.request.run, "logs": str(self.request.runs), "follow": self.request.follow}

    def lines(self) -> Iterator[Line]:
        yield f"shows the logs of run {self.request.run}"

    def wants(self, host: str, name: str) -> bool:
        rank, stream = stream_of(name)
        return (
            (self.only is None or host in self.only)
            and (rank is not None if self.request.ranks is None else rank in self.request.ranks)
            and (stream == "stderr" or not self.request.err)
        )


@dataclass
class NewEvents:
    """Reads what is new in a run's events.jsonl at `path`."""

    path: Path
    offset: int = 0

    def read(self) -> Iterator[Notice]:
        """Each with one event."""
        with suppress(OSError), open_own(self.path) as f:
            if os.fstat(f.fileno()).st_size > MOST_EVENTS:
                return
            f.seek(self.offset)
            while line := f.readline(MOST_LINE):
                if not line.endswith(b"\n") and len(line) < MOST_LINE:  # the rest comes
                    break
                self.offset += len(line)
                if (notice := _noticed(line)) is not None:
                    yield notice


def events_of(folder: Path, kind: type[E]) -> Iterator[E]:
    """Yields the events of a run that are of this kind."""
    for notice in NewEvents(folder / "events.jsonl").read():
        yield from (event for event in notice.happened if isinstance(event, kind))


def _noticed(line: bytes) -> Notice | None:
    """Returns the event of a line; None of half a line (a disk that was full), or what is none of fleet's."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        record = json.loads(line)
        level, message = record.get("level", "info"), record.get("message", "")  # not all are for people
        return Notice(level, message, record.get("host"), happened=(of_record(record),), time=float(record["time"]))
    return None


@dataclass
class Reader:
    """Emits what is new in the log files of a run's folder. begins: host -> log -> where it begins, None: all at 0;
    hosts that are not there are left out."""

    folder: Path
    plan: LogsPlan
    emit: Callable[[Output], object]
    begins: Mapping[str, Mapping[str, int]] | None = None
    offsets: dict[tuple[Path, int], int] = field(default_factory=dict)

    def poll(self) -> bool:
        """Reads what is new. Returns True where there was any."""
        here: dict[Path, int] = {}
        for path in sorted(self.folder.glob("*/*"), key=_in_rank_order):
            if LOG.fullmatch(path.name) and self._wants(path):
                with suppress(FileNotFoundError):  # set aside just now
                    here[path] = path.lstat().st_ino  # another attempt's is another file
        gone = sorted(self.offsets.keys() - here.items(), key=lambda file: _in_rank_order(file[0]))
        moved = [self._finish(*file) for file in gone]  # what its attempt wrote last comes before what the next writes
        moved += [self._show(path, (path, inode)) for path, inode in here.items()]
        if self.begins is not None:  # another attempt's logs are new as a whole
            self.begins = dict.fromkeys(self.begins, {})
        return any(moved)

    def _wants(self, path: Path) -> bool:
        host = path.parent.name
        known = self.begins is None or host in self.begins
        return known and self.plan.wants(host, path.name) and not path.parent.is_symlink()

    def _finish(self, path: Path, inode: int) -> bool:
        """Reads the rest of a log that was set aside since the last look."""
        asides = self.folder.glob(f"{ATTEMPT}*/{path.parent.name}/{path.name}")
        moved = any(self._show(aside, (path, inode)) for aside in asides if aside.stat().st_ino == inode)
        del self.offsets[path, inode]
        return moved

    def _show(self, path: Path, file: tuple[Path, int]) -> bool:
        """path: where it is now."""
        host, (rank, stream), moved = path.parent.name, stream_of(path.name), False
        try:
            f = open_own(path)
        except OSError:  # set aside just now, or none of the user's
            return False
        with f:
            if file not in self.offsets:
                tail = 0 if self.plan.request.tail is None else tail_offset(path, self.plan.request.tail)
                self.offsets[file] = max(tail, (self.begins or {}).get(host, {}).get(path.name, 0))
            f.seek(self.offsets[file])
            while data := f.read(CHUNK):
                self.offsets[file] += len(data)
                self.emit(Output(host, "stdout" if stream == "stdout" else "stderr", data, rank))
                moved = True
        return moved


class Onlooker:
    """Emits what is new in the folder of a run that another process leads. plan: its tail is 0 for what comes from now
    on, None for all of it."""

    def __init__(self, folder: Path, plan: LogsPlan, emit: Callable[[Event], object]) -> None:
        self._events, self._reader, self._emit = NewEvents(folder / "events.jsonl"), Reader(folder, plan, emit), emit
        if plan.request.tail is not None:
            self._reader.poll()
            list(self._events.read())
            self._reader.plan = replace(plan, request=replace(plan.request, tail=None))  # of files from here on all is

    def look(self) -> None:
        for notice in self._events.read():
            if not notice.has(*HUSHED):
                self._emit(notice)
        self._reader.poll()


def _in_rank_order(path: Path) -> tuple[bool, int, str, str]:
    rank = stream_of(path.name)[0] if LOG.fullmatch(path.name) else None
    return rank is None, rank or 0, path.parent.name, path.name


def tail_offset(path: Path, lines: int) -> int:
    """Returns where the last `lines` lines of a file begin."""
    with open_own(path) as f:
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
