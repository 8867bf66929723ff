"""The batch script of a run: what a Slurm user would write, with `fleet` as its last line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from math import ceil

from fleet.engines.base import Option
from fleet.errors import UsageError
from fleet.requests.submit import Submit
from fleet.sources.slurm.array import DEFAULT_WAIT, HOLD, LEADS, WAIT
from fleet.transport.slurm import WITHIN_SECONDS

EARLY_SECONDS = 30  # before the end of the grace that a user gives ranks: time to report it
# those of sbatch that are passed on as they are, but for the CPUs; any other one by --sbatch-arg
OPTIONS = (
    Option("nodes", "Nodes to ask for [--nnodes, else 1].", "N"),
    Option("partition", "Where.", "NAME"),
    Option("gres", "Devices of each node: gpu:8.", "LIST"),
    Option("gpus-per-node", "The same, where gres is not used.", "N"),
    Option("time", "For so long at most: 20:00:00, 1-12.", "TIME"),
    Option("ntasks-per-node", "Ranks a node: fleet starts one task, with the CPUs of all.", "N"),
    Option("cpus-per-task", "CPUs of each rank.", "N"),
    Option("cpus-per-gpu", "CPUs for each GPU.", "N"),
    Option("mem", "Memory of each node: 64G, 0 for all.", "SIZE"),
    Option("exclusive", "Whole nodes."),
    Option("account", "Who pays.", "NAME"),
    Option("qos", "Quality of service.", "NAME"),
    Option("nodelist", "These nodes, as -w.", "LIST"),
    Option("constraint", "Nodes that have this feature.", "LIST"),
    Option("reservation", "From this reservation.", "NAME"),
    Option("single-node-jobs", "As an array of jobs with a node each, which begin and end together."),
    Option("start-within", "Of these: seconds that the first waits for the others [3600].", "S"),
    Option("job-name", "The job's name [the run's].", "NAME"),
    Option("output", "File for what the job prints [job.out in the run's folder].", "FILE"),
    Option("sbatch-arg", "Another one of sbatch's, after a '='.", "ARG", many=True),
)
PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]*()^-]+")
OURS = {
    "--comment": "the run's id stands there",
    "--wrap": "the script is fleet's",
    "--array": "a run is one job, or as many as --single-node-jobs makes of it",
}
HEAD = "#!/bin/bash"
EXEC = "# exec: Slurm ends a batch step with its shell, and a shell does not pass on SIGTERM"


def number(options: dict[str, str], name: str, default: int) -> int:
    """Taken out of the options."""
    if name not in options:
        return default
    value = options.pop(name)
    if not value.isdecimal() or not 0 < int(value) < 1 << 16:
        raise UsageError(f"--{name} {value}: not a number")
    return int(value)


def cpus(options: dict[str, str]) -> Iterator[str]:
    """Takes out the tasks of a node and their CPUs, and yields what they are to one task with all of them."""
    tasks = number(options, "ntasks-per-node", 1)
    each = number(options, "cpus-per-task", 0)
    yield directive("ntasks-per-node", "1")
    if tasks > 1 and each:
        yield f"# {tasks} ranks a node with {each} CPUs each: fleet starts one task, which has them all"
    elif tasks > 1 and "cpus-per-gpu" not in options:
        yield f"# {tasks} ranks a node, a CPU each: fleet starts one task, which has them all"
    if each or (tasks > 1 and "cpus-per-gpu" not in options):
        yield directive("cpus-per-task", str(tasks * (each or 1)))


def directive(name: str, value: object = True) -> str:
    """A line of the script."""
    return f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={quoted(str(value))}"


def quoted(value: str) -> str:
    """Quotes a value for sbatch, which ends a value at a blank, and a line at a hash."""
    if not value.isprintable():
        raise UsageError(f"{value!r} cannot stand in a batch script", hint="leave out what is no text")
    if PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def batch_script(ask: Submit) -> str:
    """UsageError for an option that a run has no use for."""
    options = {name.replace("_", "-"): value for name, value in ask.options.items()}
    more, wait = options.pop("sbatch-arg", ()), number(options, "start-within", DEFAULT_WAIT)
    jobs = number({"nodes": ask.nodes}, "nodes", 1) if options.pop("single-node-jobs", False) else 0
    for arg in more:
        if not arg.startswith("-") or arg == "-":
            raise UsageError(f"--sbatch-arg={arg}: no option", hint="write --sbatch-arg=--OPTION=VALUE")
        if (why := OURS.get(arg.partition("=")[0])) is not None:
            raise UsageError(f"--sbatch-arg={arg}: {why}", hint="leave it away")
    lines = [directive("job-name", options.pop("job-name", ask.name)), directive("nodes", 1 if jobs else ask.nodes)]
    lines += [directive("open-mode", "append")]  # of a job that is requeued, too, nothing is lost
    lines += [directive("array", f"0-{jobs - 1}"), directive("no-requeue")] if jobs else []
    lines += cpus(options)
    lines += [directive(name, value) for name, value in options.items() if value != ""]
    lines += [directive("nodelist", ask.only)] if ask.only else []
    lines += [directive("exclude", ask.without)] if ask.without else []
    if (ask.grace or 0) > WITHIN_SECONDS and not any(arg.startswith("--signal") for arg in more):
        lines.append(directive("signal", f"TERM@{ceil(ask.grace or 0) + EARLY_SECONDS}"))
    lines += [
        f"#SBATCH {name}{equals}{quoted(value) if value else ''}"
        for name, equals, value in (it.partition("=") for it in more)
    ]
    made = [f"# {' '.join(line.split())}" for line in ask.made]
    if jobs and ask.only:
        raise UsageError("-w names the nodes of one job, and each of several has one", hint="-x, or --constraint")
    hold = [LEADS, f"export {WAIT}={wait}", HOLD] if jobs else []
    return "\n".join([HEAD, *lines, *made, *hold, EXEC, f"exec {shlex.join(ask.command)}", ""])
