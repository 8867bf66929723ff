"""The job of a run that a batch system starts: as the first events of its folder have it."""

from __future__ import annotations

from pathlib import Path

from fleet import own
from fleet.answers.run_events import Submitted
from fleet.errors import UsageError
from fleet.ops.run.kept.local import names
from fleet.ops.run.kept.reader import NewEvents
from fleet.ops.run.kept.word import choose


def job_of(word: str, runs_dir: Path) -> tuple[str, Submitted] | None:
    """(the run that a word means, its job); None where there is none here, or no queue has it."""
    try:
        run_id = choose(word, names(runs_dir))
    except UsageError:
        return None
    job = submitted(runs_dir / run_id)
    return None if job is None else (run_id, job)


def submitted(folder: Path) -> Submitted | None:
    """What a queue was asked for a run."""
    if own.foreign(folder) is not None:
        return None
    events = (event for notice in NewEvents(folder / "events.jsonl").read() for event in notice.happened)
    return next((event for event in events if isinstance(event, Submitted)), None)
