"""Converts between fleet's and Slurm's names of jobs: ids, tasks of arrays, clusters, and the script of a job."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path

from fleet.requests.submit import of_line
from fleet.sources.queue import Job
from fleet.sources.slurm.script import stated
from fleet.transport.slurm import Answer, Done

RANGE = re.compile("([0-9]+)(?:-([0-9]+))?")
MOST_TASKS = 4_000_001  # the most tasks that Slurm allows in an array


def number(job: str) -> str:
    """Returns the number by which Slurm knows the whole job: 17 for 17_0@cluster. For 17_1, which is the task of one of
    several runs, it is 17_1."""
    return id_of(job).removesuffix("_0")


def ids(jobs: Collection[Job]) -> str:
    """Returns the ids of jobs for a request. An array's number stands for all its tasks, however many there are."""
    return ",".join(dict.fromkeys(id_of(job).partition("_")[0] for job, _ in jobs))


def by_number(answer: Answer, bars: int) -> dict[str, list[str]]:
    """Returns the lines of an answer that have at least `bars` characters "|", by job. A line's keys are the id at its
    beginning, the number of the id's array, and each task that an id such as `17_[1-3,5%2]` stands for."""
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


def id_of(job: str) -> str:
    """Returns Slurm's own id of a job, such as 17_0, without its cluster."""
    return job.partition("@")[0]


def cluster_of(job: str) -> str:
    return job.partition("@")[2]


def name_of(script: Path) -> str:
    """Returns the job name of the script. Slurm's accounting keeps this name, but not the script's path."""
    with suppress(OSError):
        return stated(script.read_text(errors="replace")).get("job-name", script.name).strip('"')
    return script.name


def named(job: str, cluster: str, script: Path, text: str) -> str:
    """Returns fleet's id of a job: 17; 17_0 for a run that is an array; 17_3 for the third of several runs. "@cluster"
    follows if the job is in another cluster."""
    task = f"_{line_of(script, text) or 0}" if "array" in stated(text) else ""
    return f"{job}{task}{'@' * bool(cluster)}{cluster}"


def line_of(script: Path, text: str) -> str:
    """Returns the number, from 1, of the line of --each for which a run is. Returns "" for a run of no such line."""
    name = script.parent.name.rsplit("-", 3)[0]
    return name.rpartition("-")[2] if stated(text).get("array", "").startswith("1-") else ""


def where(cluster: str | None) -> list[str]:
    return [f"--clusters={cluster}"] if cluster else []


def paths(script: Path) -> set[str]:
    file = submitted_script(script.absolute())
    return {str(file), os.path.realpath(file)}


@cache
def submitted_script(script: Path) -> Path:
    """Returns the path of the submitted script. Each of several runs has a copy of the script; the copy of the first
    run was submitted."""
    with suppress(OSError):
        if line_of(script, script.read_text(errors="replace")):
            return script.parent.with_name(of_line(script.parent.name, 1)) / script.name
    return script
