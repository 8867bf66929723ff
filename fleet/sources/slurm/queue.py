"""Slurm's queue: sbatch, squeue, sacct, scancel."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet.errors import EXIT_HOST_FAILED, UsageError
from fleet.requests.submit import Submit
from fleet.sources.queue import Queue, Standing, State
from fleet.sources.slurm.array import MARK
from fleet.sources.slurm.script import batch_script
from fleet.transport.slurm import OVER, epoch, run_slurm, scontrol

WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
RUNNING = {"CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"}
FORMAT = "%i|%T|%S|%r"
# part of sbatch's message -> what helps
HINTS = {
    "invalid partition": "sinfo -s shows the partitions",
    "invalid account": "sacctmgr show associations user=$USER shows the accounts",
    "invalid qos": "sacctmgr show qos shows those there are",
    "node count specification": "sinfo -o '%P %D %l' shows how many nodes a partition has",
    "node configuration is not available": "sinfo -o '%P %D %c %m %G' shows what the nodes have",
    "generic resource": "sinfo -o '%P %G' shows the devices",
    "gres": "sinfo -o '%P %G' shows the devices",
    "time limit": "sinfo -o '%P %l' shows the limits",
    "constraint": "sinfo -o '%P %f' shows the features",
    "unable to contact slurm controller": "scontrol ping shows whether slurmctld is there",
}


def standing(line: str) -> Standing:
    """Returns the state in a line of `squeue -o FORMAT`. Raises ValueError."""
    _, name, start, reason = line.split("|", 3)
    name = name.strip().partition(" ")[0]  # "CANCELLED by 1000", of sacct
    if name in WAITING:
        return Standing(State.WAITING, name, reason.strip(), epoch(start))
    if name in RUNNING:
        return Standing(State.RUNNING, name)
    return Standing(State.OVER, name, reason.strip(), code=OVER.get(name, EXIT_HOST_FAILED))


def _of_all(job: str, lines: Mapping[str, str]) -> Standing | None:
    """Returns the state of a job. An array that is one run has that of the task that leads it, and waits while one of
    its tasks does."""
    if job not in lines:
        return None
    leads, array = standing(lines[job]), job.partition("_")[0]
    waiting = [standing(line) for name, line in lines.items() if name.startswith(f"{array}_")]
    waiting = [it for it in waiting if it.state is State.WAITING]
    return waiting[0] if waiting and leads.state is State.RUNNING else leads


def hint(message: str) -> str | None:
    """Returns what helps, where sbatch refuses a job."""
    return next((what for part, what in HINTS.items() if part in message.lower()), None)


class SlurmQueue(Queue):
    """Uses the queue of the cluster that this machine belongs to."""

    what = "Slurm"
    poll = (30.0, 120.0)

    def script(self, ask: Submit) -> str:
        return batch_script(ask)

    def submit(self, script: Path, run: str, output: Path) -> str:
        text = script.read_text()
        named = re.search(r"^#SBATCH (-o\b|--output\b)", text, re.MULTILINE)
        argv = ["sbatch", "--parsable", f"--comment={MARK}{run}"]
        argv += [] if named else [f"--output={str(output).replace('%', '%%')}"]
        status, answer, errors = run_slurm([*argv, str(script)])
        job = answer.strip().partition(";")[0]
        if status or not job.isdecimal():
            lines = [line for line in errors.splitlines() if line.strip()]
            first = next((line for line in lines if "error:" in line), lines[-1] if lines else f"exit status {status}")
            message = re.sub("^sbatch: (error: )?(Batch job submission failed: )?", "", first)
            raise UsageError(f"Slurm refuses the job: {message}", hint=hint("\n".join(lines)))
        return f"{job}_0" if re.search("^#SBATCH --array=", text, re.MULTILINE) else job

    def look(self, jobs: Sequence[str]) -> dict[str, Standing]:
        unknown = dict.fromkeys(jobs, Standing(State.UNKNOWN))
        try:
            ids = ",".join(job.partition("_")[0] for job in jobs)
            argv = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={ids}", "-o", FORMAT]
            status, answer, errors = run_slurm(argv) if jobs else (0, "", "")
        except UsageError:
            return unknown
        if status and "Invalid job id" not in errors:
            return unknown
        lines = {line.partition("|")[0]: line for line in answer.splitlines()}
        return {job: _of_all(job, lines) or self._past(job) for job in jobs}

    def _past(self, job: str) -> Standing:
        """Returns the state of a job that slurmctld has forgotten (MinJobAge), from accounting, or the log of jobs."""
        for which in ([], ["--completion"]):
            try:
                argv = ["sacct", "--noheader", "--parsable2", f"--jobs={job}", *which, "--format=JobID,State"]
                status, answer, _ = run_slurm(argv)
            except UsageError:
                break
            found = [line.split("|") for line in answer.splitlines()]
            names = [row[1] for row in found if len(row) == 2 and row[0] == job]
            if not status and names:
                return standing(f"{job}|{names[-1]}||")
        return Standing(State.OVER)

    def cancel(self, job: str, script: Path) -> None:
        self.check(job, script)
        run_slurm(["scancel", job.partition("_")[0]])

    def interrupt(self, job: str, script: Path) -> None:
        self.check(job, script)
        run_slurm(["scancel", "--batch", "--signal=INT", job])

    def check(self, job: str, script: Path) -> None:
        number = job.partition("_")[0]
        paths = {str(script.absolute()), os.path.realpath(script)}
        for line in scontrol(["show", "job", "-o", number]).splitlines():
            owner = re.search(r" UserId=[^ ]*\(([0-9]+)\) ", line)
            if owner and int(owner[1]) == os.getuid() and any(f" Command={path} " in f"{line} " for path in paths):
                return
        raise UsageError(
            f"Slurm does not show that job {number} is yours and runs {script}: it is left as it is",
            hint=f"scontrol show job {number} shows whose it is; scancel {number} ends it",
        )
