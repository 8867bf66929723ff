"""The run for which a job was requested, as the command of its script claims it, and records that it cannot begin."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from fleet.cli.line.line import settings_of
from fleet.cli.screen.output import inform
from fleet.errors import EXIT_INTERRUPTED, EXIT_OK, FleetError, Interrupted
from fleet.sources import INVENTORY, SOURCES
from fleet.transport.base import JobEnd

FINAL = EXIT_OK, EXIT_INTERRUPTED  # a run that ended well, or that its user ended, does not begin again


def claimed(runs_dir: Path) -> dict[str, Any]:
    """Returns the run that the job is for in which this is typed, and its attempt; {} where it is no certain one, and
    for a plan. Raises click's Exit, with the run's code, where it has ended, and its queue begins the job again."""
    name = settings_of().on
    if name == INVENTORY or settings_of().dry_run:
        return {}
    from fleet.ops.run.kept.documents import RUN, SUMMARY
    from fleet.ops.run.kept.folder import RunFolder  # these take their time
    from fleet.ops.run.kept.job import code_of, is_for

    source = SOURCES.get(name)
    (run, attempt), job = source.run_of(os.environ), source.job(os.environ)
    if run is None or job is None or not is_for(job, name, runs_dir / run):
        return {}
    code = code_of(runs_dir / run)
    if attempt and code not in (None, *FINAL):  # its user has put the job of a run that failed back
        with suppress(OSError):  # one that is there later is of a process that led the run meanwhile
            (runs_dir / run / SUMMARY).unlink()
    elif code is not None:  # slurmctld may count one that it could not begin, as the one before ran there still
        raise _repeated(runs_dir / run, code)
    if (runs_dir / run / RUN).exists():  # a slurmctld that was restarted may count from 0
        attempt = max(attempt, RunFolder(runs_dir / run).attempt + 1)
    return {"claims": run, "attempt": attempt}


@contextmanager
def on_record(runs_dir: Path) -> Iterator[Mapping[str, Any]]:
    """Yields what claimed() returns. An error before the run begins is its end, and goes on record as such,
    unless the queue ended it: that may begin it again."""
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
        if read_object(file) in ({}, before):  # else it is on record, and the queue has the request
            _keep_refusal(runs_dir, claims["claims"], error)
        raise


def _repeated(folder: Path, code: int) -> click.exceptions.Exit:
    """Prints that the run of this job has ended, and how it is run again; the job ends with the code of its run."""
    from fleet.ops.run.kept.documents import RUN
    from fleet.ops.run.kept.job import SCRIPT

    source, run = SOURCES.get(settings_of().on), folder.name
    text = f"run {run} has ended, with exit code {code}, and {source.queue().what} begins job {source.job(os.environ)}"
    requested = shlex.join(["sbatch", f"--chdir={os.getcwd()}", str((folder / SCRIPT).absolute())])
    # one that never began has no record of how it was requested, but for its script
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
    if ended is None and by_signal:  # the queue has not shown who sent it, and may begin the job again
        ended = JobEnd(error.message, error.exit_code)
    RunFolder.open(runs_dir, run).release()
    keep_refusal(runs_dir / run, not_started(error, run, runs_dir / run, ended=ended))


def requeue(folder: Path) -> None:
    """Has the queue begin this job again, where the time limit ended its run and it was requested so."""
    from fleet.ops.run.kept.job import has_ended

    source = SOURCES.get(settings_of().on)
    job = source.job(os.environ)
    if job is not None and source.requeued(os.environ) and not has_ended(folder):
        source.queue().requeue(job)
