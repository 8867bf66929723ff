"""Folders of runs as they lie on disk, by the names of docs/files.md and docs/json.md, and a process that leads one."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fleet.node.base.processes import myself
from fleet.ops.run.kept.documents import sealed
from fleet.own import seal


def an_id(name: object) -> str:
    return f"{name}-20260101-000000-0000"


def run_folder(
    runs_dir: Path,
    run: str,
    *,
    plan: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    events: Sequence[str | Mapping[str, Any]] = ("version",),
    logs: Mapping[str, str] | None = None,
    handed: bool = False,
) -> Path:
    """Returns the folder of a run that no process leads. plan: its run.json. events: of events.jsonl, each its name or
    all of it. logs: by "HOST/rank0.out". handed: somebody else's fleet made it, as one in a cloned repository."""
    folder = runs_dir / run
    folder.mkdir(0o700, parents=True)
    runs_dir.chmod(0o700)
    if not handed:
        (folder / ".made").write_text(seal(run) or "")
        plan = None if plan is None else sealed(plan, run)
    for event in events:
        happen(folder, event)
    for name, document in (("run.json", plan), ("summary.json", summary)):
        if document is not None:
            (folder / name).write_text(json.dumps(document))
    for name, text in (logs or {}).items():
        log = folder / name
        log.parent.mkdir(0o700, parents=True, exist_ok=True)
        log.write_text(text)
    return folder


def written_by_fleet(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a run.json as this user's fleet does."""
    path.write_text(json.dumps(sealed(document, path.parent.name)))


def happen(folder: Path, event: str | Mapping[str, Any]) -> None:
    """Appends a line to the events of a run."""
    fields = {"event": event} if isinstance(event, str) else event
    with (folder / "events.jsonl").open("a") as f:
        f.write(json.dumps({"time": time.time(), **fields}) + "\n")


def leads(folder: Path, **more: Any) -> None:
    """Notes what is done with a run. more: other than that this process leads it; of itself, or of the run."""
    state = {"since": time.time(), "leads": True, "lease": None, "detached": False}
    me = {name: more.pop(name, value) for name, value in myself().items()}
    (folder / "state.json").write_text(json.dumps({"leader": me, **state, **more}))


class Leader:
    """Holds the lock of a run's folder, as the process that leads it does. pid, helper, machine: what it has noted
    of itself. looks: as one does that only looks whether it is held."""

    def __init__(
        self,
        folder: Path,
        *,
        pid: int | None = None,
        helper: bool = False,
        machine: str | None = None,
        looks: bool = False,
    ) -> None:
        self._folder: Path | None = None
        self._fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, (fcntl.LOCK_SH if looks else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        if looks:
            return
        me = myself()
        self._folder = folder
        leads(folder, pid=pid or me["pid"], machine=machine or me["machine"], detached=helper)

    def release(self) -> None:
        if self._folder is not None:
            (self._folder / "state.json").unlink(missing_ok=True)
        os.close(self._fd)

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.release()
