"""Slurm's own commands, with an environment that means nothing to them."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from math import inf

from fleet.errors import EXIT_CONNECT, EXIT_HOST_FAILED, EXIT_INTERRUPTED, EXIT_TIMEOUT, UsageError
from fleet.transport.local import finish

ASK_SECONDS, WHY_SECONDS = 30.0, 5.0
WITHIN_SECONDS = 25.0  # a stop is over before Slurm's KillWait, 30 s if no other is set
EARLY_SECONDS = 900.0  # before the time limit: a signal that comes then comes because of it (--signal)
JOBS = "FLEET_SLURM_JOBS"  # lab01=17,lab02=18: by which job each node is reached
# how a job ended -> the exit code of its run, where that could not report it itself
OVER = {
    "COMPLETED": EXIT_HOST_FAILED,
    "FAILED": EXIT_HOST_FAILED,
    "CANCELLED": EXIT_INTERRUPTED,
    "PREEMPTED": EXIT_INTERRUPTED,
    "REQUEUED": EXIT_INTERRUPTED,
    "REVOKED": EXIT_INTERRUPTED,
    "TIMEOUT": EXIT_TIMEOUT,
    "DEADLINE": EXIT_TIMEOUT,
    "NODE_FAIL": EXIT_CONNECT,
    "BOOT_FAIL": EXIT_CONNECT,
    "LAUNCH_FAILED": EXIT_CONNECT,
    "RECONFIG_FAIL": EXIT_CONNECT,
    "OUT_OF_MEMORY": 137,
}
# of srun, sbatch and what MPI leaves: Slurm's commands take them for options, or for another step's
NOT_ITS = re.compile("SLURM_.*|SLURMD_.*|SBATCH_.*|SRUN_.*|SALLOC_.*|SQUEUE_.*|PMI_.*|PMI2_.*|PMIX_.*")


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment that Slurm's commands are started with."""
    kept = {name: value for name, value in environ.items() if not NOT_ITS.fullmatch(name)}
    return kept | {name: environ[name] for name in ("SLURM_CONF",) if name in environ}


def job_of(environ: Mapping[str, str]) -> str:
    """The allocation's number. UsageError where there is none."""
    job = environ.get("SLURM_JOB_ID", "")
    if not re.fullmatch("[0-9]+", job):
        raise UsageError(
            "this is no allocation of Slurm's: SLURM_JOB_ID is not set",
            hint="salloc -N 2 --gres=gpu:8, and there: fleet --on slurm launch train.py",
        )
    return job


def jobs_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Node -> job, where each node is another job's; {} elsewhere."""
    return dict(pair.partition("=")[::2] for pair in environ.get(JOBS, "").split(",") if pair)


def run_slurm(
    words: Sequence[str], environ: Mapping[str, str] = os.environ, seconds: float = ASK_SECONDS
) -> tuple[int, str, str]:
    """(exit status, stdout, stderr). UsageError where there is no such command, or it does not answer in time."""
    if (program := shutil.which(words[0])) is None:
        raise UsageError(f"{words[0]} is not on this machine", hint="run fleet where Slurm's commands are")
    try:
        status, output, errors = finish([program, *words[1:]], b"", seconds, env=own_environment(environ))
    except OSError as error:
        raise UsageError(f"{words[0]}: {error}", hint="does slurmctld answer? scontrol ping") from None
    if status is None:
        raise UsageError(
            f"{words[0]} has not answered within {seconds:g} s", hint="does slurmctld answer? scontrol ping"
        )
    return status, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace")


def scontrol(words: Sequence[str], environ: Mapping[str, str] = os.environ, seconds: float = ASK_SECONDS) -> str:
    """Returns its output; "" where it is missing or knows nothing."""
    try:
        status, output, _ = run_slurm(["scontrol", *words], environ, seconds)
    except UsageError:
        return ""
    return output if status == 0 else ""


def shown_job(job: str, seconds: float = ASK_SECONDS) -> dict[str, str]:
    """Returns the fields of `scontrol show job`; {} where nothing is known."""
    shown = [fields(line) for line in scontrol(["show", "job", "-o", job], seconds=seconds).splitlines()]
    # the last task of an array has the array's own number
    return next((it for it in shown if it.get("JobId") == job), shown[0] if shown else {})


def why_over(job: str, nodes: Sequence[str] = (), *, signalled: bool = False) -> tuple[str, int] | None:
    """(why, exit code) of a job that Slurm ends just now; None of one that goes on. nodes: the job's. signalled: its
    steps were sent a signal."""
    shown = shown_job(job, WHY_SECONDS)
    name, more = shown.get("JobState", ""), ""
    if name == "COMPLETING":  # hides what it was
        name, more = _completing(shown, nodes)
    elif name == "RUNNING" and signalled and (epoch(shown.get("EndTime", "")) or inf) - time.time() < EARLY_SECONDS:
        name = "TIMEOUT"
    return (f"ended by Slurm: {name}{more}", OVER[name]) if name in OVER else None


def _completing(shown: Mapping[str, str], nodes: Sequence[str]) -> tuple[str, str]:
    """(why, more of it), as signs have it: NodeList and Restarts are those of the next attempt already."""
    if shown.get("Reason") == "TimeLimit":
        return "TIMEOUT", ""
    if shown.get("PreemptTime", "None") not in ("None", "N/A", "Unknown"):
        return "PREEMPTED", ""
    # a node stays in the list for as long as something of the job ends there, so one that is not in it has failed
    left = scontrol(["show", "hostnames", shown.get("NodeList", "")], seconds=WHY_SECONDS).split()
    if left and (gone := [node for node in nodes if node not in left]):
        return "NODE_FAIL", f", {', '.join(gone[:3])}"
    before = os.environ.get("SLURM_RESTART_COUNT", "0")
    return "REQUEUED" if "SLURM_JOBID" in os.environ and shown.get("Restarts", before) != before else "CANCELLED", ""


def epoch(date: str) -> float | None:
    """Returns the seconds since the epoch of "2026-11-27T15:02:17"; None of "N/A"."""
    try:
        return time.mktime(time.strptime(date.strip(), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def fields(line: str) -> dict[str, str]:
    """KEY=VALUE fields of a line that scontrol writes with -o, or of one that begins with blanks. The first of two:
    from 25.11 on a job's command line (SubmitLine) follows Slurm's fields of it."""
    found = dict[str, str]()
    for token in line.split():
        name, equals, value = token.partition("=")
        if equals:
            found.setdefault(name, value)
    return found
