"""Uses Slurm's queue, by sbatch, squeue, sacct and scancel."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fleet.errors import EXIT_CONNECT, EXIT_HOST_FAILED, EXIT_OK, ConnectError, UsageError
from fleet.requests.submit import Submit, of_line
from fleet.sources.queue import Job, Queue, Standing, State
from fleet.sources.slurm import naming
from fleet.sources.slurm.script import batch_script, environment, stated
from fleet.transport.base import Cancel
from fleet.transport.slurm import (
    ASK_SECONDS,
    OVER,
    PING,
    WHY_SECONDS,
    Done,
    Refused,
    Unknown,
    ask_slurm,
    epoch,
    output_of,
    shown_fields,
    shown_job,
)

WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
RUNNING = {"CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"}
FORMAT = "%i|%T|%S|%o|%r"
PARSABLE = re.compile("[0-9]+(;[A-Za-z0-9_.-]+)?")
AMBIGUOUS = {2, 6, 7, 8, 9, 11, 15, 127}  # exit codes that are common, as are these codes + 128
SOUGHT_SECONDS, PAUSE_SECONDS = 60.0, 3.0  # how long, and how often, an unconfirmed job is looked for
# part of sbatch's message -> the hint
HINTS = {
    "invalid partition": "sinfo -s shows the partitions",
    "invalid account": "sacctmgr show associations user=$USER shows the accounts",
    "invalid qos": "sacctmgr show qos shows those there are",
    "node count specification": "sinfo -o '%P %D %l' shows how many nodes a partition has",
    "node configuration is not available": "sinfo -o '%P %D %c %m %G' shows what the nodes have",
    **dict.fromkeys(("generic resource", "gres"), "sinfo -o '%P %G' shows the devices"),
    "time limit": "sinfo -o '%P %l' shows the limits",
    "constraint": "sinfo -o '%P %f' shows the features",
    "unable to contact slurm controller": "scontrol ping shows whether slurmctld is there",
}


def standing_of(name: str, start: str = "", reason: str = "") -> Standing:
    """Returns the state that has this name in Slurm; UNKNOWN for a name of a later Slurm."""
    name = name.strip().partition(" ")[0]  # sacct prints "CANCELLED by 1000"
    if name in WAITING:
        return Standing(State.WAITING, name, reason.strip(), epoch(start))
    if name not in OVER:
        return Standing(State.RUNNING if name in RUNNING else State.UNKNOWN, name)
    return Standing(State.OVER, name, reason.strip(), code=EXIT_OK if name == "COMPLETED" else OVER[name])


def _of_all(job: Job, lines: Mapping[str, Sequence[str]]) -> Standing | None:
    """Returns the state of a job from lines of `squeue -o FORMAT`, or None if no line is about the job. lines: number
    of a job -> its lines. For a run that is an array, this is the leading task's state, or a waiting task's if the
    leading one runs."""
    runs = f"/{naming.submitted_script(job[1]).parent.name}/{job[1].name}|"  # another path may lead to it on the node
    own = [line.split("|", 4) for line in lines.get(naming.number(job[0]), ()) if runs in line]
    found = {name: standing_of(state, start, reason) for name, state, start, _, reason in own}
    if (leads := found.get(naming.id_of(job[0]))) is None:
        return None
    tasks = [it for name, it in found.items() if name.startswith(f"{naming.number(job[0])}_")]
    waiting = [it for it in tasks if it.state is State.WAITING]
    return waiting[0] if waiting and leads.state is State.RUNNING else leads


def hint(message: str) -> str | None:
    """Returns the hint for a message with which sbatch refuses a job, or None."""
    return next((what for part, what in HINTS.items() if part in message.lower()), None)


class SlurmQueue(Queue):
    """Uses the queue of the cluster that this machine belongs to."""

    what = "Slurm"
    poll = (30.0, 120.0)

    def script(self, ask: Submit) -> str:
        return batch_script(ask)

    def submit(self, script: Path, output: Path, cancel: Cancel) -> str:
        text = script.read_text()
        given = environment(text, os.environ)
        named = "output" in stated(text) or "SBATCH_OUTPUT" in given
        run, file = script.parent.name, str(output).replace("%", "%%")
        file = file.replace(run, of_line(run, "%a")) if naming.line_of(script, text) else file
        argv = ["sbatch", "--parsable", *([] if named else [f"--output={file}"]), str(script)]
        answer = ask_slurm(argv, given=given, cancel=cancel)
        if isinstance(answer, Refused):
            raise UsageError(f"Slurm refuses the job: {answer.why}", hint=hint(answer.stderr))
        why = f"sbatch printed no number: {answer.output.strip()[:200]!r}" if isinstance(answer, Done) else answer.why
        printed = map(str.strip, answer.output.splitlines()) if isinstance(answer, Done) else ()
        jobs = [line for line in printed if PARSABLE.fullmatch(line)]  # a site's plugins print lines of their own, too
        number, _, cluster = jobs[0].partition(";") if len(jobs) == 1 else ("", "", "")
        return naming.named(number, cluster, script, text) if number else self._find_unconfirmed(script, why, cancel)

    def of_line(self, job: str, line: int) -> str:
        return re.sub("_[0-9]+", f"_{line}", job, count=1)

    def _find_unconfirmed(self, script: Path, why: str, cancel: Cancel) -> str:
        """Returns the number of a job that sbatch has not confirmed: slurmctld may accept it later. Raises ConnectError
        if the job does not appear in time."""
        until = time.monotonic() + SOUGHT_SECONDS
        while True:
            last = cancel.is_set() or time.monotonic() > until
            with suppress(ConnectError):
                waits = (Cancel(), WHY_SECONDS) if last else (cancel, ASK_SECONDS)
                if (job := self.find(script, *waits)) is not None:
                    return job
            if last:
                raise ConnectError(
                    f"Slurm has not confirmed the job, which may run all the same: {why}", kind="unknown"
                )
            cancel.wait(PAUSE_SECONDS)

    def find(self, script: Path, cancel: Cancel | None = None, seconds: float = ASK_SECONDS) -> str | None:
        text, found, cluster = script.read_text(), list[tuple[int, str]](), ""
        argv = ["squeue", "--noheader", "--me", "--states=all", *naming.where(stated(text).get("clusters"))]
        answer = ask_slurm([*argv, "-o", "%F|%o"], seconds=seconds, cancel=cancel)
        if not isinstance(answer, Done):
            raise ConnectError(f"squeue: {answer.why}", hint=PING, kind="timeout")
        for line in answer.output.splitlines():
            job, _, command = line.partition("|")
            if line.startswith("CLUSTER: "):  # the line above the jobs of each cluster
                cluster = line.removeprefix("CLUSTER: ").strip()
            elif command.strip() in naming.paths(script) and job.isdecimal():
                found.append((int(job), cluster))
        return naming.named(str(min(found)[0]), min(found)[1], script, text) if found else None

    def look(self, jobs: Collection[Job]) -> dict[Job, Standing]:
        found = dict[Job, Standing]()
        for cluster in {naming.cluster_of(job) for job, _ in jobs}:
            those = [job for job in jobs if naming.cluster_of(job[0]) == cluster]
            which = [f"--jobs={naming.ids(those)}", *naming.where(cluster)]
            answer = ask_slurm(["squeue", "--noheader", "--array", "--states=all", *which, "-o", FORMAT])
            if isinstance(answer, Done) or (isinstance(answer, Refused) and "Invalid job id" in answer.stderr):
                lines = naming.by_number(answer, 4)
                there = {job: it for job in those if (it := _of_all(job, lines)) is not None}
                found |= there | self._past([job for job in those if job not in there], cluster)
        return {job: _with_code(job[0], found.get(job, Standing(State.UNKNOWN))) for job in jobs}

    def _past(self, jobs: Sequence[Job], cluster: str) -> dict[Job, Standing]:
        """Returns the ends of jobs that slurmctld no longer lists (MinJobAge), from accounting or the job log. Leaves
        out jobs whose end is not known now."""
        found, left = dict[Job, Standing](), jobs
        whole = {"SLURM_BITSTR_LEN": "0"}  # sacct then prints all tasks of a row, however many
        for which in ([], ["--completion"]):
            if not left:
                break
            argv = ["sacct", "--noheader", "--parsable2", f"--jobs={naming.ids(left)}", *which, *naming.where(cluster)]
            answer = ask_slurm([*argv, "--format=JobID,State,ExitCode,JobName"], given=whole)
            if isinstance(answer, Unknown):
                return found
            lines = naming.by_number(answer, 3)
            for job in left:
                rows = [line.split("|", 3) for line in lines.get(naming.id_of(job[0]), ())]
                ends = [
                    _coded(standing_of(row[1]), row[2], not which) for row in rows if row[3] == naming.name_of(job[1])
                ]
                if ends and ends[-1].state is State.OVER:  # accounting that shows RUNNING has missed the end
                    found[job] = ends[-1]
            left = [job for job in left if job not in found]
        return found | dict.fromkeys(left, Standing(State.OVER, code=EXIT_CONNECT))

    def output(self, job: str, script: Path) -> Path | None:
        shown = shown_job(naming.number(job), WHY_SECONDS) if "@" not in job else {}
        return (
            Path(shown["StdOut"]) if f"{shown.get('Command')}" in naming.paths(script) and "StdOut" in shown else None
        )

    def cancel(self, job: str, script: Path) -> None:
        self._scancel(job, script, [naming.number(job)])

    def interrupt(self, job: str, script: Path) -> None:
        self._scancel(job, script, ["--batch", "--signal=INT", naming.id_of(job)])

    def _scancel(self, job: str, script: Path, arguments: Sequence[str]) -> None:
        self.check(job, script)
        argv = ["scancel", *naming.where(naming.cluster_of(job)), *arguments]
        output_of(ask_slurm(argv), f"job {naming.number(job)} is not cancelled, as far as is known")

    def requeue(self, job: str) -> None:
        output_of(
            ask_slurm(["scontrol", "requeue", job]), f"job {job} is not put back into the queue, as far as is known"
        )

    def check(self, job: str, script: Path) -> None:
        number = naming.number(job)
        answer = ask_slurm(["scontrol", "show", "job", "-o", number, *naming.where(naming.cluster_of(job))])
        if isinstance(answer, Unknown) or (isinstance(answer, Refused) and "Invalid job id" not in answer.stderr):
            raise ConnectError(f"job {number} is left as it is: {answer.why}", hint=PING, kind="timeout")
        for line in answer.output.splitlines() if isinstance(answer, Done) else ():
            owner = re.search(r" UserId=[^ ]*\(([0-9]+)\) ", line)
            runs = any(f" Command={it} " in f"{line} " for it in naming.paths(script))
            if owner and int(owner[1]) == os.getuid() and runs:
                return
        raise UsageError(
            f"Slurm does not show that job {number} is yours and runs {script}: it is left as it is",
            hint=f"scontrol show job {number} shows whose it is; scancel {number} ends it",
        )


def _with_code(job: str, found: Standing) -> Standing:
    """Returns the state with the exit code of its run, if the batch step failed. Returns UNKNOWN while that code is not
    known."""
    if found.name != "FAILED" or found.code != EXIT_HOST_FAILED or "@" in job:
        return found
    answer = ask_slurm(["scontrol", "show", "job", "-o", job], seconds=WHY_SECONDS)
    if isinstance(answer, Refused):
        return found
    shown = shown_fields(job, answer.output) if isinstance(answer, Done) else {}
    return _coded(found, shown["ExitCode"]) if "ExitCode" in shown else Standing(State.UNKNOWN)


def _coded(found: Standing, code: str, is_short: bool = False) -> Standing:
    """Returns the state with Slurm's exit code, such as "1:0". After a signal, the first number is 0 and is ignored.
    is_short: the code is from sacct, which shows 130 as 2, so that 2 is ambiguous and is not taken."""
    status = code.partition(":")[0]
    if found.name != "FAILED" or not status.isdecimal() or not 0 < int(status) < 256:
        return found
    if is_short and int(status) in AMBIGUOUS:
        return replace(found, reason=f"exit code {status} or {int(status) + 128}, sacct shows both alike")
    return replace(found, code=int(status))
