"""A meeting of containers in this process: the table that one of them keeps, and lines of those that dial it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fleet.node.container.line import Line as Line
from fleet.node.container.line import dial
from fleet.node.container.meeting import Table

from fleet.answers.event import RunEvent
from fleet.answers.runs import RunSummary
from fleet.codec import from_json
from fleet.node.container.record import Record
from fleet.ops.run.kept.reader import NewEvents

RUN = "t-20261128-101112-00ff"
ABOUT = {"platform": "aistation", "engine": "torchrun", "lease": 0.0, "fleet": {"transport": "env"}}
ENDED = {"code": 0, "state": "exited", "reason": None, "ranks": {}}


def failure(host: str, code: int = 1, what: str = "rank", **more: Any) -> dict[str, Any]:
    about = {"host": host, "node_rank": 0, "rank": 0, "exit_code": code, "what": what, "message": f"{host} failed"}
    return {**about, **more}


class Meeting:
    """A table, and containers that dial it from this process."""

    def __init__(self, runs: Path, least: int, most: int) -> None:
        self.runs, self.reports = runs, list[str]()
        self.about = {"job": "j", "least": least, "most": most}
        self.table = Table(0, self.about, Record(str(runs), RUN, ABOUT), self.reports.append)
        self.pool, self.lines = ThreadPoolExecutor(128), list[Line]()

    def dial(self, name: str, rank: int | None = None) -> tuple[Line, dict[str, Any]]:
        hello = {"host": name, "rank": rank, "each": 2, "about": self.about}
        found = dial("127.0.0.1", self.table.port, hello, 20.0, lambda text: None)
        self.lines.append(found[0])
        return found

    def all(self, *names: str) -> list[Line]:
        """Once they have begun."""
        return [line for line, _ in self.pool.map(self.dial, names, range(len(names)))]

    def close(self) -> None:
        self.table.close()
        for line in self.lines:
            line.sock.close()
        self.pool.shutdown()

    def summary(self) -> dict[str, Any]:
        self.table.rest(20.0, bool)
        found: dict[str, Any] = json.loads((self.runs / RUN / "summary.json").read_text())
        from_json(RunSummary, found)  # as any head reads it
        return found

    def events(self) -> list[RunEvent]:
        return [event for notice in NewEvents(self.runs / RUN / "events.jsonl").read() for event in notice.happened]


def heard(line: Line, kind: str) -> dict[str, Any]:
    """The next message of the kind."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        message = line.receive(1.0)
        if message is not None and kind in message:
            return dict(message[kind])
    raise AssertionError(f"no {kind} came")
