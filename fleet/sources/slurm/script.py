"""Makes the batch script of a run, as a Slurm user would write it, with `fleet` in its last line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from fleet.engines.base import Option
from fleet.engines.launchers import REFUSED_IN_JOBS
from fleet.engines.translate import UnknownOption, each_option, options_of, tokens_of
from fleet.errors import UsageError
from fleet.inventory.secret import masked_argv, secret_in
from fleet.requests.submit import Submit, both, of_line
from fleet.sources.slurm.array import DEFAULT_WAIT, HOLD, LEADS, WAIT
from fleet.transport.slurm import WITHIN_SECONDS

NO_SECRET = "a script must not hold a secret"
NO_SECRET_HINT = "--env-file FILE gives it to the ranks, --export=ALL,NAME takes it from your environment"
EARLY_SECONDS = 30  # time to report the end, after the grace period of the ranks
# options of sbatch, passed on unchanged, except those of CPUs. --sbatch-arg passes any option that is not listed here
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
    Option("setup", "A line of the job before fleet begins: 'module load cuda'.", "LINE", many=True),
    Option("requeue", "Go on as the next attempt, up to N times, where the time limit ends it.", "N"),
    Option(
        "each",
        "A run for each line of FILE (empty ones and comments do not count), which has arguments of SCRIPT.",
        "FILE",
    ),
    Option("submit", "From inside an allocation, too: as a job of its own."),
    Option("sbatch-arg", "Another one of sbatch's, after a '='.", "ARG", many=True),
)
NAMES = {*(option.name for option in OPTIONS), "exclude"}
PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]*()^-]+")
DIRECTIVE = re.compile(r"^#SBATCH --([\w-]+)(?:=(.*))?$", re.MULTILINE)
# variables of sbatch whose option has another name
VARIABLES = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_BURST_BUFFER": "bb",
    "SBATCH_CPU_FREQ_REQ": "cpu-freq",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_WAIT4SWITCH": "switches",
    "SLURM_CLUSTERS": "clusters",
    "SLURM_HINT": "hint",
}
# groups of options: if the script states one, sbatch gets no variable for any option of the group
KINDS = (
    ("requeue", "no-requeue"),
    ("exclusive", "oversubscribe"),
    ("mem", "mem-per-cpu", "mem-per-gpu"),
    ("cpus-per-task", "cpus-per-gpu"),
    ("core-spec", "thread-spec"),
    ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"),
)
KIND = {name: names[0] for names in KINDS for name in names}
CLUSTERS = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS")  # if both are set, the first one is used
HEAD = "#!/bin/bash"
RUN = "FLEET_CLAIMS"  # variable of a job: the id of the run for which the job was requested
TASK = "SLURM_ARRAY_TASK_ID"
REQUEUES = "FLEET_REQUEUES"  # variable of a job: how many times it is requeued when its time limit ends it
SAVE_SECONDS = 60  # with --requeue and no --grace, ranks have this time before the time limit to save their work
EXEC = "# exec: Slurm ends a batch step with its shell, and a shell does not pass on SIGTERM"


def number(options: dict[str, Any], name: str, default: int) -> int:
    """Removes an option, and returns its number, or `default` if it is not given. Raises UsageError for other text."""
    if name not in options:
        return default
    value = options.pop(name)
    if not value.isdecimal() or not 0 < int(value) < 1 << 16:
        raise UsageError(f"--{name} {value}: not a number")
    return int(value)


def cpus(options: dict[str, Any]) -> Iterator[str]:
    """Removes the options of tasks and CPUs, and yields the script's lines for one task that has all their CPUs."""
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
    """Returns a line of the script that states an option."""
    return f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={stated_as(name, str(value))}"


def stated_as(name: str, value: str) -> str:
    """Returns a value as the script states it. Raises UsageError for a secret, and for characters that are not text."""
    tokens = value.split(",")
    if (shown := masked_argv(tokens)) != tokens:
        raise UsageError(
            f"--{name}={','.join(shown)}: {NO_SECRET}",
            hint=NO_SECRET_HINT,
        )
    return quoted(value)


def shown_of(value: str) -> str:
    """Returns a value for display, in which each NAME=SECRET of a list is masked."""
    return ",".join(masked_argv(value.split(",")))


def text(value: str) -> str:
    """Returns the value. Raises UsageError if it has characters that cannot be printed."""
    if not value.isprintable():
        raise UsageError(f"{value!r} cannot be in a batch script", hint="leave out what is no text")
    return value


def quoted(value: str) -> str:
    """Quotes a value for sbatch, which ends a value at a blank, and a line at a hash."""
    if PLAIN.fullmatch(text(value)):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def stated(script: str) -> dict[str, str]:
    """Returns the options that a batch script states: name -> value."""
    return {name: value or "" for name, value in DIRECTIVE.findall(script)}


def environment(script: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the user's variables that sbatch gets. A variable is left out if the script states its option, because
    sbatch would prefer the variable. Raises UsageError for a variable whose option a run cannot have."""
    given, refused = dict[str, str](), dict[str, str]()
    taken = {kind for option, value in stated(script).items() for kind in _kinds(option, value)}
    for name in sorted(it for it in environ if it.startswith("SBATCH_") or it in VARIABLES):
        option = VARIABLES.get(name, name.removeprefix("SBATCH_").lower().replace("_", "-"))
        if option in REFUSED_IN_JOBS:
            refused[name] = REFUSED_IN_JOBS[option][0]
        elif not taken & _kinds(option, environ[name]):
            given[name] = environ[name]
    if refused:
        why = "; ".join(dict.fromkeys(refused.values()))
        without = " ".join(f"-u {name}" for name in refused)
        raise UsageError(f"{' is set, '.join(refused)} is set: {why}", hint=f"write env {without} before the line")
    return given


def _kinds(option: str, value: str) -> set[str]:
    """Returns the option itself, and the group of options that it belongs to."""
    devices = option == "gres" and re.search(r"\bgpu\b", value)
    return {option, "gpus" if devices else KIND.get(option, option)}


def read_arguments(tokens: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Sorts the options of --sbatch-arg. Returns ({name: value} of options that fleet has, too; the script's lines for
    all others). Raises UsageError for an option that a run cannot have, in any spelling."""
    own, lines = dict[str, Any](), dict[str, str]()
    for token in tokens:
        if not token.startswith("-") or token == "-":
            raise UsageError(f"--sbatch-arg={token}: no option", hint="write --sbatch-arg=--OPTION=VALUE")
        rest = tokens_of(token)
        try:
            for _, known, value in each_option(options_of("sbatch"), rest):
                assert known is not None
                if refused := REFUSED_IN_JOBS.get(known.name):
                    raise UsageError(refused[0], hint=refused[1])
                if known.name in NAMES - {"requeue"} and (value is None or known.takes == "="):
                    own[known.name] = True if value is None else value
                else:
                    lines[known.name] = directive(known.name, True if value is None else value)
            if rest:
                raise UsageError(f"{rest[0]} is no option", hint="give --sbatch-arg once for each")
        except UnknownOption:  # an option of a later Slurm
            lines[_parts(token)[0]] = _later(token)
        except UsageError as error:
            name, equals, value = _parts(token)
            typed = f"--sbatch-arg={name}{equals}{shown_of(value)}"
            raise UsageError(f"{typed}: {error.message}", hint=error.hint) from None
    return own, [*lines.values()]


def _parts(token: str) -> tuple[str, str, str]:
    """Returns (an option, a blank or "=", its value)."""
    option, *rest = tokens_of(token)
    return (option, " ", rest[0]) if rest else option.partition("=")


def _later(token: str) -> str:
    """Returns the script's line for an option that fleet's table of sbatch's options lacks."""
    name, equals, value = _parts(token)
    return f"#SBATCH {text(name)}{equals}{stated_as(name.lstrip('-'), value) if value else ''}"


def named(only: str | None) -> str:
    """Returns the number of nodes in a node set; "1" if there is no node set."""
    from fleet.inventory.fields import FieldError
    from fleet.inventory.nodeset import expand  # takes long to import

    try:
        return str(len(expand(only))) if only else "1"
    except (ValueError, FieldError) as error:
        raise UsageError(f"-w {only}: {error}", hint="--nodes N says how many") from None


def batch_script(ask: Submit) -> str:
    """Returns the batch script of a request. Raises UsageError for an option that a run cannot have."""
    options = {name.replace("_", "-"): value for name, value in ask.options.items()}
    own, more = read_arguments(options.pop("sbatch-arg", ()))
    only = both(ask.only, own.pop("nodelist", None))
    nodes = own.pop("nodes", ask.nodes) or named(only)
    without = both(ask.without, own.pop("exclude", None))
    if devices := next((it for it in (only, without) if it and ":" in it), None):
        hint = "--gres=gpu:2 asks for as many of each node"
        raise UsageError(f"{devices}: Slurm chooses a node's devices, and -w and -x name nodes only", hint=hint)
    options = {**own, **options}
    wait = number(options, "start-within", DEFAULT_WAIT)
    jobs = number({"nodes": nodes}, "nodes", 1) if options.pop("single-node-jobs", False) else 0
    setup, again = options.pop("setup", ()), number(options, "requeue", 0)
    one = "leave one of them out"
    for is_given, why, instead in (
        (ask.each, "--each makes a job of each line, and --single-node-jobs several", one),
        (again or directive("requeue") in more, "--requeue is for one job, and --single-node-jobs are several", one),
        (only, "-w names the nodes of one job, and each of several has one", "-x, or --constraint"),
    ):
        if jobs and is_given:
            raise UsageError(why, hint=instead)
    lines = [directive("job-name", options.pop("job-name", ask.name)), directive("nodes", 1 if jobs else nodes)]
    lines += [directive("open-mode", "append")]  # so a requeued job does not overwrite its output
    lines += [directive("array", f"0-{jobs - 1}"), directive("no-requeue")] if jobs else []
    lines += [directive("requeue")] if again else []
    lines += [directive("array", f"1-{len(ask.each)}")] if ask.each else []
    lines += cpus(options)
    lines += [directive(name, value) for name, value in options.items() if value != ""]
    lines += [directive("nodelist", only)] if only else []
    lines += [directive("exclude", without)] if without else []
    grace = ask.grace or (SAVE_SECONDS if again else 0)
    if grace > WITHIN_SECONDS and not any(line.startswith("#SBATCH --signal") for line in more):
        lines.append(directive("signal", f"TERM@{ceil(grace) + EARLY_SECONDS}"))
    lines = [line for line in lines if not stated(line).keys() & stated("\n".join(more)).keys()] + more
    # the script states the cluster: a later command that looks for the job may have other variables
    cluster = next(filter(None, map(ask.environ.get, CLUSTERS)), None)
    if cluster and "clusters" not in stated("\n".join(lines)):
        lines.append(directive("clusters", cluster))
    given = environment("\n".join(lines), ask.environ)
    made = [*ask.made, *(f"of the environment, sbatch is given {it}={shown_of(given[it])}" for it in given)]
    lines += [f"# {' '.join(line.split())}" for line in made]
    for line in setup:
        if shown := secret_in(line):
            raise UsageError(f"--setup: {shown}: {NO_SECRET}", hint=NO_SECRET_HINT)
    hold = [LEADS, f"export {WAIT}={wait}", HOLD] if jobs else []
    requeues = [f"export {REQUEUES}={again}"] if again else []
    those = [f"{line}) set -- {shlex.join(map(text, tokens))};;" for line, tokens in enumerate(ask.each, 1)]
    case = [f"case ${TASK} in", *those, "esac"] if those else []
    run, command = ask.run, [*map(shlex.quote, ask.command)]
    if those:
        run = of_line(ask.run, f"${TASK}")
        command = [*(_quoted(it, ask.run, run) for it in ask.command), '"$@"']
    # only this command gets the run's id: a second fleet command in the job must not begin the same run
    command = [*[f"{RUN}={run}"] * bool(run), "exec", *command]
    return "\n".join([HEAD, *lines, *hold, *requeues, *setup, *case, EXEC, " ".join(command), ""])


def _quoted(token: str, first: str, run: str) -> str:
    """Returns a token of the command for the shell. The id of the first run is replaced by the id of the line's run."""
    before, found, after = token.partition(first)
    return f'{shlex.quote(before)}"{run}"{shlex.quote(after)}' if found else shlex.quote(token)
