"""`fleet runs`: the runs that have a folder on this machine, and the end of old ones."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fleet.errors import UsageError
from fleet.ops.launch.folder import LATEST, MISSING, RunFolder, read_object, read_told

DAY = 86400.0
DOCUMENTS = ("run.json", "summary.json")


@dataclass(frozen=True)
class LocalRun:
    """state: "done", "failed", "stopped", "followed" (a process here writes to its folder), or "open": it has no
    summary, and nobody here follows it. started: seconds since the epoch. size: bytes. exit_code: None while it has no
    summary. broken: what is wrong with what tells of it, in words; None: nothing."""

    run: str
    state: str
    started: float
    size: int
    exit_code: int | None
    engine: str | None
    logs: str
    broken: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def local_runs(runs_dir: Path) -> list[LocalRun]:
    """Newest first."""
    return sorted(map(_read, _folders(runs_dir)), key=lambda run: run.started, reverse=True)


def names(runs_dir: Path, *, followed_first: bool = False) -> list[str]:
    """Newest first. followed_first: before all others those that a process of this machine follows now."""
    folders = sorted(_folders(runs_dir), key=_started, reverse=True)
    if followed_first:
        folders.sort(key=lambda folder: (folder / "summary.json").exists() or not followed(folder))
    return [folder.name for folder in folders]


def _folders(runs_dir: Path) -> list[Path]:
    return [path.parent for path in runs_dir.glob("*/events.jsonl") if not path.parent.is_symlink()]


def _started(folder: Path) -> float:
    started = read_object(folder / "run.json").get("started")
    return started if isinstance(started, float) else (folder / "events.jsonl").stat().st_mtime


def prunable(runs: list[LocalRun], keep: int, days: float, max_size: float | None = None) -> list[LocalRun]:
    """Those that are over, but for the newest `keep`, older than `days`; with max_size the oldest of them, until the
    rest of all takes no more bytes."""
    over = [run for run in runs if run.exit_code is not None and run.state != "followed"]
    old = [run for run in over[keep:] if time.time() - run.started > days * DAY]
    if max_size is None:
        return old
    beyond = sum(run.size for run in runs) - max_size
    chosen: list[LocalRun] = []
    while beyond > 0 and old:
        chosen.insert(0, old.pop())
        beyond -= chosen[0].size
    return chosen


def prune(run: LocalRun) -> None:
    """Take its folder away; UsageError where somebody writes to it, or it cannot be removed."""
    folder = RunFolder(Path(run.logs))
    if not folder.hold():
        raise UsageError(f"{run.run}: a process follows it just now")
    link = folder.path.with_name(LATEST)
    try:
        shutil.rmtree(run.logs)
        if link.is_symlink() and not link.exists():
            link.unlink()
    except OSError as error:
        raise UsageError(f"{error.filename or run.logs}: {error.strerror}") from None
    finally:
        folder.release()


def followed(path: Path) -> bool:
    """Whether a process of this machine writes to a run's folder."""
    folder = RunFolder(path)
    free = folder.hold()
    folder.release()
    return not free


def _read(path: Path) -> LocalRun:
    plan, summary = (read_object(path / name) for name in DOCUMENTS)
    code = summary.get("exit_code")
    state = (
        "followed"
        if followed(path)
        else "open"
        if code is None
        else "stopped"
        if code == 130
        else "failed"
        if code
        else "done"
    )
    return LocalRun(
        path.name,
        state,
        _started(path),
        sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir()),
        code if isinstance(code, int) else None,
        plan.get("engine"),
        str(path),
        broken(path),
    )


def broken(path: Path) -> str | None:
    """What is wrong with the documents that a run's folder has, in words."""
    told = ((path / name, read_told(path / name)[1]) for name in DOCUMENTS)
    return next((f"{document} {wrong}" for document, wrong in told if wrong not in (None, MISSING)), None)
