"""Reads the new parts of a run's folder: of its logs, which become Output events, and of its events.jsonl."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict, TypeVar

from fleet.answers.event import RunEvent
from fleet.answers.run_events import Cleaned, Notifies, RunOver, of_record
from fleet.answers.run_start_events import NodeStarted, Submitted, Version
from fleet.codec import UNBOUNDED, T, decode
from fleet.events import Event, Level, Notice, Output
from fleet.ops.plans import RequestPlan
from fleet.ops.run.kept.documents import whole_lines
from fleet.ops.run.kept.logs import stream_of
from fleet.own import open_own
from fleet.protocol.state import ATTEMPT, is_log
from fleet.requests.runs import Logs
from fleet.transport.base import Cancel

E = TypeVar("E", bound=RunEvent)
CHUNK = 1 << 20
POLL_SECONDS = 0.1
MOST_EVENTS = 1 << 28  # bytes of the file; fleet writes no larger one
HUSHED = (RunOver, NodeStarted, Cleaned, Notifies, Submitted, Version)  # not shown, or in another way
MOST_LINE = 1 << 20  # bytes of a line; a longer one is no event


@dataclass(frozen=True)
class LogsPlan(RequestPlan[Logs]):
    """Holds the plan. only: the hosts whose logs are shown; None: all."""

    only: tuple[str, ...] | None = None


@dataclass
class NewEvents:
    """Reads new lines of a run's events.jsonl at `path`."""

    path: Path
    offset: int = 0

    def read(self) -> Iterator[Notice]:
        """Yields a notice for each new line, with one event each."""
        with suppress(OSError), open_own(self.path) as f:
            if os.fstat(f.fileno()).st_size > MOST_EVENTS:
                return
            f.seek(self.offset)
            for line in whole_lines(f, MOST_LINE):
                self.offset += len(line)
                if (notice := _noticed(line)) is not None:
                    yield notice


def events_of(folder: Path, kind: type[E]) -> Iterator[E]:
    """Yields the events of a run that are of this kind."""
    for notice in NewEvents(folder / "events.jsonl").read():
        yield from (event for event in notice.happened if isinstance(event, kind))


_Common = TypedDict("_Common", {"time": float, "level": Level, "message": str, "host": str | None}, total=False)


def _noticed(line: bytes) -> Notice | None:
    """Returns the notice of a line; None if it is cut off by a full disk, or not one of fleet's."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        record = decode(_Common, json.loads(line), UNBOUNDED)
        level, message = record.get("level", "info"), record.get("message", "")  # some events have no text
        return Notice(level, message, record.get("host"), happened=(of_record(record),), time=float(record["time"]))
    return None


@dataclass
class Reader:
    """Emits new parts of the log files in a run's folder. begins: host -> log -> the offset to begin at; hosts that are
    not in it are not shown; None: all logs begin at 0. only: the hosts to show; None: all. offsets: (first path, inode)
    of a log -> the offset up to which it was shown."""

    folder: Path
    request: Logs
    emit: Callable[[Output], object]
    begins: Mapping[str, Mapping[str, int]] | None = None
    only: Collection[str] | None = None
    offsets: dict[tuple[Path, int], int] = field(default_factory=dict)

    def poll(self) -> bool:
        """Emits new parts of the logs. Returns whether there were any."""
        here: dict[Path, int] = {}
        for path in sorted(self.folder.glob("*/*"), key=_in_rank_order):
            if is_log(path.name) and self._wants(path):
                with suppress(FileNotFoundError):  # set aside just now
                    here[path] = path.lstat().st_ino  # in another attempt, this path is another file
        gone = sorted(self.offsets.keys() - here.items(), key=lambda file: _in_rank_order(file[0]))
        moved = [self._finish(*file) for file in gone]  # the rest of an attempt is shown before the next attempt
        moved += [self._show(path, (path, inode)) for path, inode in here.items()]
        if self.begins is not None:  # logs of a later attempt are shown from their beginning
            self.begins = dict.fromkeys(self.begins, {})
        return any(moved)

    def _wants(self, path: Path) -> bool:
        host, (rank, stream), request = path.parent.name, stream_of(path.name), self.request
        return (
            (self.begins is None or host in self.begins)
            and (self.only is None or host in self.only)
            and (rank is not None if request.ranks is None else rank in request.ranks)
            and (stream == "stderr" or not request.err)
            and not path.parent.is_symlink()
        )

    def _finish(self, path: Path, inode: int) -> bool:
        """Reads the rest of a log that was set aside since the last look."""
        asides = self.folder.glob(f"{ATTEMPT}*/{path.parent.name}/{path.name}")
        moved = any(self._show(aside, (path, inode)) for aside in asides if aside.stat().st_ino == inode)
        del self.offsets[path, inode]
        return moved

    def _show(self, path: Path, file: tuple[Path, int]) -> bool:
        """Emits the new part of a log. path: its present path. file: its first path, and its inode."""
        host, (rank, stream), moved = path.parent.name, stream_of(path.name), False
        try:
            f = open_own(path)
        except OSError:  # set aside just now, or not the user's
            return False
        with f:
            if file not in self.offsets:
                tail = 0 if self.request.tail is None else tail_offset(path, self.request.tail)
                self.offsets[file] = max(tail, (self.begins or {}).get(host, {}).get(path.name, 0))
            f.seek(self.offsets[file])
            while data := f.read(CHUNK):
                self.offsets[file] += len(data)
                self.emit(Output(host, "stdout" if stream == "stdout" else "stderr", data, rank))
                moved = True
        return moved


class Onlooker:
    """Emits new parts of the folder of a run that another process coordinates. request.tail: 0 shows output from now
    on, None shows all output."""

    def __init__(self, folder: Path, request: Logs, emit: Callable[[Event], object]) -> None:
        self._events, self._reader, self._emit = NewEvents(folder / "events.jsonl"), Reader(folder, request, emit), emit
        if request.tail is not None:
            self._reader.poll()
            list(self._events.read())
            self._reader.request = replace(request, tail=None)  # new files are shown as a whole

    def look(self) -> None:
        for notice in self._events.read():
            if not notice.has(*HUSHED):
                self._emit(notice)
        self._reader.poll()


def look_until(end: Callable[[], T | None], look: Callable[[], object], latch: Cancel) -> T:
    """Calls `look` again and again until `end` returns a value, and then once more for the last output. Returns that
    value. latch: ends a pause between two looks."""
    while not (ended := end()):
        look()
        latch.wait(POLL_SECONDS)
    look()
    return ended


def _in_rank_order(path: Path) -> tuple[bool, int, str, str]:
    rank = stream_of(path.name)[0] if is_log(path.name) else None
    return rank is None, rank or 0, path.parent.name, path.name


def tail_offset(path: Path, lines: int) -> int:
    """Returns the offset at which the last `lines` lines of a file begin."""
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
