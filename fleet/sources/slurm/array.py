"""Finds the nodes of a run that is a job array with one node per task. Task 0 leads the run once all tasks run.

Each node is reached by a step of its own job. Every other task holds its node as long as such a step runs on it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

from fleet.errors import ConnectError, DeadlineError, HostFailed, UsageError
from fleet.protocol.state import is_run_id
from fleet.transport.slurm import JOBS, PING, ask_slurm, output_of

WAIT = "FLEET_ARRAY_WAIT"  # seconds for which task 0 waits for the others; only set if the tasks are one run
DEFAULT_WAIT = 3600
SOON_SECONDS, PAUSE_SECONDS = 3.0, 30.0
COMING = {"RUNNING", "PENDING", "CONFIGURING"}
FORMAT = "%i|%A|%N|%T|%r"
LEADS = "# the tasks of this array are the nodes of one run: task 0 leads it, and waits so many seconds for the others"
HOLD = """\
if [ "$SLURM_ARRAY_TASK_ID" != 0 ]; then # holds its node until a step of task 0 comes, and for as long as it runs
    trap '' USR1 USR2 # task 0 passes them on to ranks
    pids() { scontrol listpids "$SLURM_JOB_ID" 2>/dev/null; }
    step() {
        grep -aqs "slurmstepd: .$SLURM_JOB_ID[.][0-9]" /proc/[0-9]*/cmdline ||
            pids | awk '$3 ~ /^[0-9]+$/ { found = 1 } END { exit !found }'
    }
    until step || [ $SECONDS -gt $FLEET_ARRAY_WAIT ]; do sleep 1; done
    while step || { sleep 15; step; }; do sleep 5; done
    exit 0
fi"""


class Task(NamedTuple):
    """Describes a task of an array. name: ARRAY_INDEX. job: the id of the task's own job. node: "" before it runs.
    reason: why it waits. In the tasks that of_user() returns, it is the path of the script, in the run's folder."""

    name: str
    job: str
    node: str
    state: str
    reason: str

    @property
    def number(self) -> int:
        return int(self.name.partition("_")[2])


def listed(*options: str) -> list[Task]:
    """Returns the tasks that squeue lists. Raises UsageError or ConnectError if squeue fails."""
    output = output_of(ask_slurm(["squeue", "--noheader", "--array", *options]), "squeue")
    return [Task(*line.split("|", 4)) for line in output.splitlines() if line.count("|") >= 4]


def tasks_of(array: str) -> list[Task]:
    """Returns the array's tasks, by index. Raises UsageError or ConnectError if squeue fails."""
    found = listed("--states=all", f"--jobs={array}", "-o", FORMAT)
    return sorted((it for it in found if it.name.partition("_")[2].isdecimal()), key=lambda it: it.number)


def of_user() -> list[Task]:
    """Returns this user's running jobs that lead runs. Raises UsageError if there is none."""
    found = listed("--me", "--states=RUNNING", "-o", "%i|%A|%N|%T|%o")
    found = [task for task in found if is_run_id(PurePath(task.reason.strip()).parent.name)]
    if not found:
        raise UsageError("no job of yours leads a run now", hint="'fleet runs' shows those that wait, or are over")
    return found


def entered(tasks: list[Task]) -> dict[str, str]:
    """Returns the environment variables with which a process takes the nodes of these tasks for its allocation."""
    from fleet.inventory.nodeset import expand  # takes long to import

    tasks = [task._replace(node=node) for task in tasks for node in expand(task.node)]
    return {
        JOBS: ",".join(f"{it.node}={it.job}" for it in tasks),
        "SLURM_JOB_ID": tasks[0].job if tasks else "",
        "SLURM_JOB_NODELIST": ",".join(dict.fromkeys(it.node for it in tasks)),
    }


def check_alone(tasks: list[Task]) -> None:
    """Raises UsageError if two jobs are on one node."""
    nodes = [it.node for it in tasks]
    if twice := next((node for node in nodes if nodes.count(node) > 1), None):
        names = ", ".join(it.name for it in tasks if it.node == twice)
        raise UsageError(f"jobs {names} are all on {twice}", hint="--exclusive gives each a node of its own")


def gathered(environ: Mapping[str, str]) -> dict[str, str]:
    """Waits until all tasks run, and returns the variables of entered().

    Raises UsageError if this is not task 0. If the wait fails, it cancels the other tasks and raises DeadlineError,
    HostFailed or UsageError: two runs that both wait would otherwise hold each other's nodes. If Slurm never answered,
    it cancels nothing and raises ConnectError, because each task ends by itself."""
    array, count = environ["SLURM_ARRAY_JOB_ID"], int(environ.get("SLURM_ARRAY_TASK_COUNT", "1"))
    if environ.get("SLURM_ARRAY_TASK_ID") != "0":
        raise UsageError("task 0 of an array leads its run", hint=f"squeue --array --jobs={array}")
    try:
        tasks = _all_there(array, count, float(environ[WAIT]))
        check_alone(tasks)
        return entered(tasks)
    except ConnectError:
        raise
    except BaseException:
        ask_slurm(["scancel", f"{array}_[1-{count - 1}]"])
        raise


def _all_there(array: str, count: int, wait: float) -> list[Task]:
    begun, pause, tasks, why = time.monotonic(), SOON_SECONDS, list[Task](), "squeue shows none of the array's tasks"
    refused = False
    while True:
        try:
            tasks, refused = tasks_of(array), False
        except (UsageError, ConnectError) as error:  # the next request may be answered
            if refused and isinstance(error, UsageError):
                raise
            why, refused = error.message, isinstance(error, UsageError)
        there = [it for it in tasks if it.state == "RUNNING"]
        if len(there) == count:
            return there
        others = ", ".join(f"{it.name} {it.state}, {it.reason}" for it in tasks if it not in there)
        text = f"{len(there)} of {count} nodes are there; Slurm of the others: {others}"
        if any(it.state not in COMING for it in tasks):
            raise HostFailed(text, kind="ended")
        if time.monotonic() + pause > begun + wait:
            if not tasks:
                raise ConnectError(f"Slurm did not answer within {wait:g} s: {why}", hint=PING, kind="timeout")
            raise DeadlineError(f"within {wait:g} s {text}", hint="--start-within waits longer")
        time.sleep(pause)
        pause = PAUSE_SECONDS
