"""Uses Slurm's queue, by sbatch, squeue, sacct and scancel."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from fleet.errors import EXIT_CONNECT, EXIT_HOST_FAILED, EXIT_OK, ConnectError, UsageError
from fleet.requests.submit import Submit, of_line
from fleet.sources.queue import Job, Queue, Standing, State
from fleet.sources.slurm.script import batch_script, environment, stated
from fleet.transport.base import Cancel
from fleet.transport.slurm import (
    ASK_SECONDS,
    OVER,
    PING,
    WHY_SECONDS,
    Answer,
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
RANGE = re.compile("([0-9]+)(?:-([0-9]+))?")
AMBIGUOUS = {2, 6, 7, 8, 9, 11, 15, 127}  # common exit codes, and so are those that are 128 more
MOST_TASKS = 4_000_001  # the most tasks that Slurm allows in an array
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


def standing(name: str, start: str = "", reason: str = "") -> Standing:
    """Returns the state that has this name in Slurm; UNKNOWN for a name of a later Slurm."""
    name = name.strip().partition(" ")[0]  # sacct prints "CANCELLED by 1000"
    if name in WAITING:
        return Standing(State.WAITING, name, reason.strip(), epoch(start))
    if name not in OVER:
        return Standing(State.RUNNING if name in RUNNING else State.UNKNOWN, name)
    return Standing(State.OVER, name, reason.strip(), code=EXIT_OK if name == "COMPLETED" else OVER[name])


def _of_all(job: Job, lines: Mapping[str, Sequence[str]]) -> Standing | None:
    """Returns the state of a job from lines of `squeue -o FORMAT`; None if no line is about it. lines: by number(). An
    array that is one run has the state of its leading task, and waits while any of its tasks waits."""
    runs = f"/{_submitted(job[1]).parent.name}/{job[1].name}|"  # it may be mounted elsewhere there
    own = [line.split("|", 4) for line in lines.get(number(job[0]), ()) if runs in line]
    found = {name: standing(state, start, reason) for name, state, start, _, reason in own}
    if (leads := found.get(_id(job[0]))) is None:
        return None
    tasks = [it for name, it in found.items() if name.startswith(f"{number(job[0])}_")]
    waiting = [it for it in tasks if it.state is State.WAITING]
    return waiting[0] if waiting and leads.state is State.RUNNING else leads


def hint(message: str) -> str | None:
    """Returns the hint for a message by which sbatch refuses a job."""
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
        file = file.replace(run, of_line(run, "%a")) if _line(script, text) else file
        argv = ["sbatch", "--parsable", *([] if named else [f"--output={file}"]), str(script)]
        answer = ask_slurm(argv, given=given, cancel=cancel)
        if isinstance(answer, Refused):
            raise UsageError(f"Slurm refuses the job: {answer.why}", hint=hint(answer.stderr))
        why = f"sbatch printed no number: {answer.output.strip()[:200]!r}" if isinstance(answer, Done) else answer.why
        printed = map(str.strip, answer.output.splitlines()) if isinstance(answer, Done) else ()
        jobs = [line for line in printed if PARSABLE.fullmatch(line)]  # a site's plugins print lines of their own, too
        number, _, cluster = jobs[0].partition(";") if len(jobs) == 1 else ("", "", "")
        return _named(number, cluster, script, text) if number else self._sought(script, why, cancel)

    def of_line(self, job: str, line: int) -> str:
        return re.sub("_[0-9]+", f"_{line}", job, count=1)

    def _sought(self, script: Path, why: str, cancel: Cancel) -> str:
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
                text = f"Slurm has not confirmed the job, which may run all the same: {why}"
                raise ConnectError(text, kind="unknown")
            cancel.wait(PAUSE_SECONDS)

    def find(self, script: Path, cancel: Cancel | None = None, seconds: float = ASK_SECONDS) -> str | None:
        text, found, cluster = script.read_text(), list[tuple[int, str]](), ""
        where = _where(stated(text).get("clusters"))
        argv = ["squeue", "--noheader", "--me", "--states=all", *where, "-o", "%F|%o"]
        answer = ask_slurm(argv, seconds=seconds, cancel=cancel)
        if not isinstance(answer, Done):
            raise ConnectError(f"squeue: {answer.why}", hint=PING, kind="timeout")
        for line in answer.output.splitlines():
            job, _, command = line.partition("|")
            if line.startswith("CLUSTER: "):  # the line above the jobs of each cluster
                cluster = line.removeprefix("CLUSTER: ").strip()
            elif command.strip() in _paths(script) and job.isdecimal():
                found.append((int(job), cluster))
        return _named(str(min(found)[0]), min(found)[1], script, text) if found else None

    def look(self, jobs: Collection[Job]) -> dict[Job, Standing]:
        found = dict[Job, Standing]()
        for cluster in {_cluster(job) for job, _ in jobs}:
            those = [job for job in jobs if _cluster(job[0]) == cluster]
            ids = _ids(those)
            argv = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={ids}", *_where(cluster), "-o", FORMAT]
            answer = ask_slurm(argv)
            if isinstance(answer, Done) or (isinstance(answer, Refused) and "Invalid job id" in answer.stderr):
                lines = _by_number(answer, 4)
                there = {job: it for job in those if (it := _of_all(job, lines)) is not None}
                found |= there | self._past([job for job in those if job not in there], cluster)
        return {job: _with_code(job[0], found.get(job, Standing(State.UNKNOWN))) for job in jobs}

    def _past(self, jobs: Sequence[Job], cluster: str) -> dict[Job, Standing]:
        """Returns how jobs ended that slurmctld no longer lists (MinJobAge), from accounting or the job log. A job
        whose end is not known now is missing."""
        found, left = dict[Job, Standing](), jobs
        whole = {"SLURM_BITSTR_LEN": "0"}  # sacct then prints all tasks of a row, however many
        for which in ([], ["--completion"]):
            if not left:
                break
            argv = ["sacct", "--noheader", "--parsable2", f"--jobs={_ids(left)}", *which, *_where(cluster)]
            answer = ask_slurm([*argv, "--format=JobID,State,ExitCode,JobName"], given=whole)
            if isinstance(answer, Unknown):
                return found
            lines = _by_number(answer, 3)
            for job in left:
                rows = [line.split("|", 3) for line in lines.get(_id(job[0]), ())]
                ends = [_coded(standing(row[1]), row[2], not which) for row in rows if row[3] == _job_name(job[1])]
                if ends and ends[-1].state is State.OVER:  # accounting that shows it as running has missed its end
                    found[job] = ends[-1]
            left = [job for job in left if job not in found]
        return found | dict.fromkeys(left, Standing(State.OVER, code=EXIT_CONNECT))

    def output(self, job: str, script: Path) -> Path | None:
        shown = shown_job(number(job), WHY_SECONDS) if "@" not in job else {}
        return Path(shown["StdOut"]) if f"{shown.get('Command')}" in _paths(script) and "StdOut" in shown else None

    def cancel(self, job: str, script: Path) -> None:
        self._scancel(job, script, [number(job)])

    def interrupt(self, job: str, script: Path) -> None:
        self._scancel(job, script, ["--batch", "--signal=INT", _id(job)])

    def _scancel(self, job: str, script: Path, stderr: Sequence[str]) -> None:
        self.check(job, script)
        answer = ask_slurm(["scancel", *_where(_cluster(job)), *stderr])
        output_of(answer, f"job {number(job)} is not cancelled, as far as is known")

    def requeue(self, job: str) -> None:
        answer = ask_slurm(["scontrol", "requeue", job])
        output_of(answer, f"job {job} is not put back into the queue, as far as is known")

    def check(self, job: str, script: Path) -> None:
        answer = ask_slurm(["scontrol", "show", "job", "-o", number(job), *_where(_cluster(job))])
        if isinstance(answer, Unknown) or (isinstance(answer, Refused) and "Invalid job id" not in answer.stderr):
            raise ConnectError(f"job {number(job)} is left as it is: {answer.why}", hint=PING, kind="timeout")
        for line in answer.output.splitlines() if isinstance(answer, Done) else ():
            owner = re.search(r" UserId=[^ ]*\(([0-9]+)\) ", line)
            if owner and int(owner[1]) == os.getuid() and any(f" Command={it} " in f"{line} " for it in _paths(script)):
                return
        raise UsageError(
            f"Slurm does not show that job {number(job)} is yours and runs {script}: it is left as it is",
            hint=f"scontrol show job {number(job)} shows whose it is; scancel {number(job)} ends it",
        )


def number(job: str) -> str:
    """Returns the number that means all of a job: 17 for 17_0@cluster. A task of a line, 17_1, is a job of its own."""
    return _id(job).removesuffix("_0")


def _ids(jobs: Collection[Job]) -> str:
    """Returns the ids of jobs for a request. An array's number stands for all its tasks, however many there are."""
    return ",".join(dict.fromkeys(_id(job).partition("_")[0] for job, _ in jobs))


def _by_number(answer: Answer, bars: int) -> dict[str, list[str]]:
    """Returns the lines of an answer with at least `bars` bars. Keys: the id at the line's beginning, its array's
    number, and each task that an id such as `17_[1-3,5%2]` stands for."""
    found = defaultdict[str, list[str]](list)
    for line in answer.output.splitlines() if isinstance(answer, Done) else ():
        name = line.partition("|")[0]
        array, _, tasks = name.partition("_")
        if line.count("|") < bars:
            continue
        names = {name, array}
        for low, high in RANGE.findall(tasks.partition("%")[0]) if tasks.startswith("[") else ():
            names |= {f"{array}_{task}" for task in range(int(low), min(int(high or low), MOST_TASKS) + 1)}
        for each in names:
            found[each].append(line)
    return found


def _id(job: str) -> str:
    """Returns Slurm's own id of a job, such as 17_0, without its cluster."""
    return job.partition("@")[0]


def _cluster(job: str) -> str:
    return job.partition("@")[2]


def _job_name(script: Path) -> str:
    """Returns the job name of the script. Accounting has this name, and no path of the script."""
    with suppress(OSError):
        return stated(script.read_text(errors="replace")).get("job-name", script.name).strip('"')
    return script.name


def _named(job: str, cluster: str, script: Path, text: str) -> str:
    """Returns fleet's id of a job. In an array it includes the leading task, or the task of the line. For another
    cluster it includes the cluster."""
    task = f"_{_line(script, text) or 0}" if "array" in stated(text) else ""
    return f"{job}{task}{'@' * bool(cluster)}{cluster}"


def _line(script: Path, text: str) -> str:
    """Returns the number of the line, from 1, that a run is for; "" if it is not one of several runs."""
    name = script.parent.name.rsplit("-", 3)[0]
    return name.rpartition("-")[2] if stated(text).get("array", "").startswith("1-") else ""


def _where(cluster: str | None) -> list[str]:
    return [f"--clusters={cluster}"] if cluster else []


def _paths(script: Path) -> set[str]:
    file = _submitted(script.absolute())
    return {str(file), os.path.realpath(file)}


@cache
def _submitted(script: Path) -> Path:
    """Returns the path of the submitted script. Each of several runs has a copy; the first run's one was submitted."""
    with suppress(OSError):
        if _line(script, script.read_text(errors="replace")):
            return script.parent.with_name(of_line(script.parent.name, 1)) / script.name
    return script


def _with_code(job: str, found: Standing) -> Standing:
    """Returns the state with the exit code of its run, if the batch step failed. It is UNKNOWN while that code is not
    known."""
    if found.name != "FAILED" or found.code != EXIT_HOST_FAILED or "@" in job:
        return found
    answer = ask_slurm(["scontrol", "show", "job", "-o", job], seconds=WHY_SECONDS)
    if isinstance(answer, Refused):
        return found
    shown = shown_fields(job, answer.output) if isinstance(answer, Done) else {}
    return _coded(found, shown["ExitCode"]) if "ExitCode" in shown else Standing(State.UNKNOWN)


def _coded(found: Standing, code: str, is_short: bool = False) -> Standing:
    """Returns the state with Slurm's exit code, such as "1:0". After a signal its first number is 0, and is ignored.
    is_short: it is sacct's, which shows 130 as 2: it is not known then."""
    status = code.partition(":")[0]
    if found.name != "FAILED" or not status.isdecimal() or not 0 < int(status) < 256:
        return found
    if is_short and int(status) in AMBIGUOUS:
        return replace(found, reason=f"exit code {status} or {int(status) + 128}, sacct shows both alike")
    return replace(found, code=int(status))
