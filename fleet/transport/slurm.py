"""Runs Slurm's own commands, without environment variables that they would take as options."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from fleet.errors import EXIT_CONNECT, EXIT_HOST_FAILED, EXIT_INTERRUPTED, EXIT_TIMEOUT, ConnectError, UsageError
from fleet.transport.base import KNOWN_SECONDS, Cancel, JobEnd
from fleet.transport.local import finish

# time limits of a command of Slurm, and of a short query; the pause between two tries
ASK_SECONDS, WHY_SECONDS, PAUSE_SECONDS = 30.0, 5.0, 1.0
PING = "does slurmctld answer? scontrol ping"
# Slurm's messages after which it is not known if a request was executed. "(connect failure)" is not one of them: the
# request was not sent.
UNSURE = re.compile(
    "timed out|zero bytes|(receive|send|shutdown) failure|connection (refused|reset)|transport endpoint|"
    "unexpected message|communications? (connection )?error|temporarily un|try again|no route|unreachable",
    re.IGNORECASE,
)
# The same for all commands except sbatch, and one message more. After that message, sbatch has requested nothing, but
# the other commands got no answer.
NO_ANSWER = re.compile(f"{UNSURE.pattern}|unable to contact slurm controller", re.IGNORECASE)
# Messages of srun after slurmctld was restarted: slurmctld does not know the job's nodes yet, or forgot that it began
# the job.
NOT_YET = re.compile(
    f"{NO_ANSWER.pattern}|memory required by task is not available|job is pending execution", re.IGNORECASE
)
WITHIN_SECONDS = 25.0  # a stop ends before Slurm's KillWait, which is 30 s by default
EARLY_SECONDS = 900.0  # in the last seconds before the time limit, a signal is sent because of the limit (--signal)
FROZEN_SECONDS = 60.0  # a job that ends so soon after the limit that it began with has reached that limit
JOBS = "FLEET_SLURM_JOBS"  # lab01=17,lab02=18: node -> the job through which it is reached
# how a job ended -> the exit code of its run, if the run could not report one
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
# Variables that Slurm's commands must not get: those of srun, sbatch and MPI, which they take for options or for
# another step's variables, and those that fleet sets for one job.
NOT_ITS = re.compile(
    "SLURM_.*|SLURMD_.*|SBATCH_.*|SRUN_.*|SALLOC_.*|SQUEUE_.*|PMI_.*|PMI2_.*|PMIX_.*|FLEET_(CLAIMS|REQUEUES|ARRAY_WAIT)"
)


def own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for Slurm's commands."""
    kept = {name: value for name, value in environ.items() if not NOT_ITS.fullmatch(name)}
    return kept | {name: environ[name] for name in ("SLURM_CONF",) if name in environ}


def job_of(environ: Mapping[str, str]) -> str:
    """Returns the allocation's number. Raises UsageError outside of an allocation."""
    job = environ.get("SLURM_JOB_ID", "")
    if not re.fullmatch("[0-9]+", job):
        raise UsageError(
            "this is no allocation of Slurm's: SLURM_JOB_ID is not set",
            hint="salloc -N 2 --gres=gpu:8, and there: fleet --on slurm launch train.py",
        )
    return job


def jobs_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns node -> job if each node belongs to a job of its own; {} otherwise."""
    return dict(pair.partition("=")[::2] for pair in environ.get(JOBS, "").split(",") if pair)


@dataclass(frozen=True)
class Done:
    """Reports that a command of Slurm succeeded. output: its stdout."""

    output: str


@dataclass(frozen=True)
class Refused:
    """Reports that Slurm refused a request. why: Slurm's own message. stderr: the whole stderr of the command."""

    why: str
    stderr: str = ""


@dataclass(frozen=True)
class Unknown:
    """Reports that it is not known if Slurm did what was requested: no answer came, or an unclear one."""

    why: str


Answer = Done | Refused | Unknown


def ask_slurm(
    argv: Sequence[str],
    *,
    seconds: float = ASK_SECONDS,
    given: Mapping[str, str] = {},
    cancel: Cancel | None = None,
) -> Answer:
    """Runs a command of Slurm. given: variables with options for the command, which gets no other such variables.
    cancel: ends the command when it is set."""
    name = argv[0]
    if (program := shutil.which(name)) is None:
        return Refused(f"{name} is not on this machine")
    try:
        status, output, errors = finish(
            [program, *argv[1:]],
            b"",
            seconds,
            None if cancel is None else cancel.is_set,
            env={**own_environment(os.environ), **given},
        )
    except OSError as error:
        return Refused(f"{name}: {error.strerror}")
    if status is None and cancel is not None and cancel.is_set():
        return Unknown(f"{name} was interrupted before it answered")
    if status is None:
        return Unknown(f"{name} has not answered within {seconds:g} s")
    if status == 0:
        return Done(output.decode("utf-8", "replace"))
    text = errors.decode("utf-8", "replace").strip()
    lines = text.splitlines()
    first = next((line for line in lines if "error:" in line), lines[-1] if lines else f"exit status {status}")
    why = re.sub(f"^{name}: (error: )?(Batch job submission failed: )?", "", first)
    unsure = UNSURE if name == "sbatch" else NO_ANSWER
    return Unknown(f"{name}: {why}") if status < 0 or unsure.search(text) else Refused(why, text)


def output_of(answer: Answer, what: str) -> str:
    """Returns the output of a command that succeeded. Raises UsageError if Slurm refused the command. Raises
    ConnectError if it is not known what Slurm did. what: the beginning of the message."""
    if isinstance(answer, Done):
        return answer.output
    if isinstance(answer, Refused):
        raise UsageError(f"{what}: {answer.why}", hint="run fleet where Slurm's commands are, and reach slurmctld")
    raise ConnectError(f"{what}: {answer.why}", hint=PING, kind="timeout")


def scontrol(arguments: Sequence[str], seconds: float = ASK_SECONDS) -> str:
    """Returns the output of scontrol; "" if scontrol is missing, fails or does not answer.."""
    answer = ask_slurm(["scontrol", *arguments], seconds=seconds)
    return answer.output if isinstance(answer, Done) else ""


def shown_job(job: str, seconds: float = ASK_SECONDS) -> dict[str, str]:
    """Returns the fields of `scontrol show job`; {} if nothing is known."""
    return shown_fields(job, scontrol(["show", "job", "-o", job], seconds))


def shown_fields(job: str, output: str) -> dict[str, str]:
    """Returns the fields of a job in the output of `scontrol show job -o`; {} if there are none."""
    shown = [fields(line) for line in output.splitlines()]
    # the last task of an array has the array's own number
    return next((it for it in shown if it.get("JobId") == job), shown[0] if shown else {})


def why_over(
    job: str, nodes: Sequence[str] = (), *, signalled: bool = False, seconds: float = KNOWN_SECONDS
) -> JobEnd | None:
    """Returns why Slurm is ending a job; None if the job goes on. nodes: names of the job's nodes. signalled: the job's
    steps got a signal. seconds: the limit of the query to slurmctld."""
    seconds = seconds if signalled else min(seconds, WHY_SECONDS)  # unsignalled, the job likely goes on
    answer = _patiently(["scontrol", "show", "job", "-o", job], seconds)
    shown = shown_fields(job, answer.output) if isinstance(answer, Done) else {}
    if not shown:
        # Slurm sets this variable since 23.02, to the limit at the job's begin. The limit may have changed later.
        limit = os.environ.get("SLURM_JOB_END_TIME", "") if os.environ.get("SLURM_JOB_ID") == job else ""
        if signalled and limit.isdecimal() and 0 <= time.time() - int(limit) < FROZEN_SECONDS:
            return JobEnd("ended by Slurm: TIMEOUT", OVER["TIMEOUT"])
        why = "scontrol shows no such job" if isinstance(answer, Done) else answer.why
        text = f"ended by a signal of Slurm's; why is not known: {why}"
        return JobEnd(text, EXIT_INTERRUPTED, known=False) if signalled else None
    name, more = shown.get("JobState", ""), ""
    if name == "COMPLETING":  # this state hides the reason
        name, more = _completing(shown, nodes)
    elif name == "PENDING":  # slurmctld was restarted without the job's start on record: it begins the job again
        name = "REQUEUED"
    elif name == "RUNNING" and signalled and _preempted(shown):  # the job runs on for its GraceTime
        name = "PREEMPTED"
    elif name == "RUNNING" and signalled and (epoch(shown.get("EndTime", "")) or inf) - time.time() < EARLY_SECONDS:
        name = "TIMEOUT"
    by = "stop" if name == "CANCELLED" else "queue"
    return JobEnd(f"ended by Slurm: {name}{more}", OVER[name], by=by) if name in OVER else None


def _patiently(argv: Sequence[str], seconds: float) -> Answer:
    """Runs a command that only queries. Repeats it while there is no answer."""
    until = time.monotonic() + seconds
    while True:
        answer = ask_slurm(argv, seconds=max(0.0, until - time.monotonic()))
        if not isinstance(answer, Unknown) or time.monotonic() + PAUSE_SECONDS >= until:
            return answer
        time.sleep(PAUSE_SECONDS)


def _completing(shown: Mapping[str, str], nodes: Sequence[str]) -> tuple[str, str]:
    """Returns (why, more text) for a completing job, from indirect signs. The NodeList and Restarts of such a job are
    already those of the next attempt."""
    if _preempted(shown):
        return "PREEMPTED", ""
    if shown.get("Reason") == "TimeLimit":
        return "TIMEOUT", ""
    # a node stays in the list while processes of the job end there, so a missing node has failed
    left = scontrol(["show", "hostnames", shown.get("NodeList", "")], seconds=WHY_SECONDS).split()
    if left and (gone := [node for node in nodes if node not in left]):
        return "NODE_FAIL", f", {', '.join(gone[:3])}"
    before = os.environ.get("SLURM_RESTART_COUNT", "0")
    return "REQUEUED" if "SLURM_JOBID" in os.environ and shown.get("Restarts", before) != before else "CANCELLED", ""


def _preempted(shown: Mapping[str, str]) -> bool:
    return shown.get("PreemptTime", "None") not in ("None", "N/A", "Unknown")


def route_to(address: str) -> str | None:
    """Returns this machine's address on the route to another one; None if there is no route."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
    return None


def epoch(date: str) -> float | None:
    """Returns the seconds since the epoch of "2026-11-27T15:02:17"; None for "N/A"."""
    try:
        return time.mktime(time.strptime(date.strip(), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def fields(line: str) -> dict[str, str]:
    """Returns the KEY=VALUE fields of a line that scontrol writes with -o, or of a line that begins with blanks. Of two
    fields with the same name, the first counts: since Slurm 25.11, the job's command line (SubmitLine) follows the
    fields and may look like one."""
    found = dict[str, str]()
    for token in line.split():
        name, equals, value = token.partition("=")
        if equals:
            found.setdefault(name, value)
    return found
