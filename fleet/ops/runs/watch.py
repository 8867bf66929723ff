"""Looking on while a process of this machine follows a run: its events and logs from the run's folder, its report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fleet.errors import ConnectError, FleetError
from fleet.events import Event, Notice
from fleet.model import Report, Result
from fleet.ops.launch.folder import RunFolder, read_object
from fleet.ops.runs.logs import POLL_SECONDS, LogsPlan, NewEvents, Reader
from fleet.runtime import Runtime


def watch(plan: LogsPlan, folder: RunFolder, runtime: Runtime) -> Report | None:
    """Until the run is over: its report. None: it is left, or nobody follows it any more; then the folder is ours.
    plan: its tail is 0."""
    looking = False

    def show(event: Event) -> None:
        if looking:
            runtime.emit(event)

    reader, events = Reader(folder.path, plan, show), NewEvents(folder.path / "events.jsonl")
    reader.poll()
    list(events.read())
    looking, reader.plan = True, replace(plan, tail=None)  # of files that come from here on all is new
    while not runtime.detach.is_set() and not runtime.cancel.is_set():
        free = folder.hold()
        for record in _news(events):
            level = record.get("level", "info")  # an older fleet's have none
            show(Notice(level, str(record.get("message", "")), record.get("host"), None, record))
        reader.poll()
        if free:
            return report_of(folder)
        runtime.detach.wait(POLL_SECONDS)
    return None


def _news(events: NewEvents) -> Iterator[dict[str, Any]]:
    return (record for record in events.read() if record["event"] not in ("summary", "started", "kept", "cleaned"))


def report_of(folder: RunFolder) -> Report | None:
    """As its summary.json tells; None while there is none."""
    summary = read_object(folder.path / "summary.json")
    if "exit_code" not in summary:
        return None
    results = tuple(_result(name, host) for name, host in summary["hosts"].items())
    data = {name: value for name, value in summary.items() if name not in ("verb", "ok", "exit_code", "hosts")}
    return Report("launch", results, summary["exit_code"], data)


def _result(name: str, host: dict[str, Any]) -> Result:
    told = host.pop("error")
    error: FleetError | None = None
    if told is not None:
        error = ConnectError(told["message"], hint=told["hint"], kind=told["kind"], host=name)
    own = {key: value for key, value in host.items() if key not in ("ok", "exit_status", "stdout", "stderr")}
    return Result(name, host["ok"], host["exit_status"], error=error, data=own)
