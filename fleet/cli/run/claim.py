"""Claims, inside of a job, the run that the job was submitted for. Records an error that keeps it from beginning."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fleet.best_effort import best_effort
from fleet.cli.line.line import settings_of
from fleet.cli.screen.output import inform
from fleet.errors import FleetError, Interrupted
from fleet.sources import INVENTORY, SOURCES
from fleet.transport.base import JobEnd


def claimed(runs_dir: Path) -> dict[str, Any]:
    """Returns the run that this process's job was submitted for, and its attempt; {} if that is not known for certain,
    and for --dry-run. If the queue begins the job again after the run has ended, raises click's Exit with the run's
    exit code."""
    name = settings_of().on
    if name == INVENTORY or settings_of().dry_run:
        return {}
    from fleet.ops.run.kept.documents import RUN, SUMMARY
    from fleet.ops.run.kept.folder import RunFolder  # slow to import
    from fleet.ops.run.kept.job import code_of, is_final, is_for

    source = SOURCES.get(name)
    (run, attempt), job = source.run_of(os.environ), source.job(os.environ)
    if run is None or job is None or not is_for(job, name, runs_dir / run):
        return {}
    code = code_of(runs_dir / run)
    # a user has put the job of a failed run back into the queue, or the queue did so after a signal of unknown origin
    if attempt and code is not None and not is_final(runs_dir / run):
        # a process that led the run meanwhile may write another summary
        with best_effort("remove the summary of the earlier job"):
            (runs_dir / run / SUMMARY).unlink()
    elif code is not None:  # slurmctld may count a start that failed because the last one still ran there
        raise _repeated(runs_dir / run, code)
    if (runs_dir / run / RUN).exists():  # a restarted slurmctld may count attempts from 0 again
        attempt = max(attempt, RunFolder(runs_dir / run).attempt + 1)
    return {"claims": run, "attempt": attempt}


@contextmanager
def on_record(runs_dir: Path) -> Iterator[Mapping[str, Any]]:
    """Yields what claimed() returns. If an error comes before the run begins, it is recorded as the run's end. It is
    not if the queue ended the job, because the queue may begin the job again."""
    if not (claims := claimed(runs_dir)):
        yield claims
        return
    from fleet.ops.run.kept.documents import SUMMARY, read_object
    from fleet.ops.run.kept.job import HAS_ENDED, code_of

    file = runs_dir / claims["claims"] / SUMMARY
    before = read_object(file)
    try:
        yield claims
    except FleetError as error:
        if error.kind == HAS_ENDED and (code := code_of(file.parent)) is not None:
            raise _repeated(file.parent, code) from error
        if read_object(file) in ({}, before):  # otherwise the end is on record already, or the job is back in the queue
            _keep_refusal(runs_dir, claims["claims"], error)
        raise


def _repeated(folder: Path, code: int) -> click.exceptions.Exit:
    """Prints that the run of this job has ended, and the command that repeats it. Returns the Exit with the run's
    code."""
    from fleet.ops.run.kept.documents import RUN
    from fleet.ops.run.kept.job import SCRIPT

    source, run = SOURCES.get(settings_of().on), folder.name
    text = f"run {run} has ended, with exit code {code}, and {source.queue().what} begins job {source.job(os.environ)}"
    requested = shlex.join(["sbatch", f"--chdir={os.getcwd()}", str((folder / SCRIPT).absolute())])
    # a run that never began has no record of its request except for its script
    inform(f"{text} again", f"fleet launch --again {run}" if (folder / RUN).exists() else requested)
    return click.exceptions.Exit(code)


def _keep_refusal(runs_dir: Path, run: str, error: FleetError) -> None:
    from fleet.ops.run.end.summary import not_started
    from fleet.ops.run.kept.folder import RunFolder
    from fleet.ops.run.kept.job import has_ended, keep_refusal

    if has_ended(runs_dir / run):
        return
    by_signal = isinstance(error, Interrupted)
    ended = SOURCES.get(settings_of().on).ended(os.environ, signalled=by_signal)
    if ended is None and by_signal:  # the queue does not show who sent the signal, and may begin the job again
        ended = JobEnd(error.message, error.exit_code)
    RunFolder.open(runs_dir, run).release()
    keep_refusal(runs_dir / run, not_started(error, run, runs_dir / run, ended=ended))


def requeue(folder: Path) -> None:
    """Requests that the queue begins this job again, if the time limit ended its run and the user wanted that."""
    from fleet.ops.run.kept.job import has_ended

    source = SOURCES.get(settings_of().on)
    job = source.job(os.environ)
    if job is not None and source.requeued(os.environ) and not has_ended(folder):
        source.queue().requeue(job)
