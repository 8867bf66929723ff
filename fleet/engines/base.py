"""Defines an engine: it turns a job and a node into the one process that fleet's supervisor starts on that node.

The training command never passes through an engine's own argument parser: torchrun would take options of the command
for its own and rewrite `$$`; DeepSpeed would insert `--local_rank`. Engines start fleet's spawn program instead. It
finds the command in `command.json` next to it, in the run's folder on the node, and passes it to rank.py."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.engines.slips import refuse, refuse_owned
from fleet.model import Job, Kind, Node
from fleet.node.base.wire import at_port


@dataclass(frozen=True)
class NodePython:
    """Represents, in an argv, the isolated interpreter (-I -S) that runs fleet's programs on the node."""

    def as_spec(self) -> dict[str, Any]:
        return {"python": True}

    def __str__(self) -> str:
        return "{python}"


@dataclass(frozen=True)
class InRunDir:
    """Represents, in an argv, the absolute path of a file in the run's folder on the node."""

    name: str

    def as_spec(self) -> dict[str, Any]:
        return {"run_dir": self.name}

    def __str__(self) -> str:
        return f"{{run_dir}}/{self.name}"


Argument = str | NodePython | InRunDir

SPAWN: tuple[Argument, ...] = (NodePython(), InRunDir("spawn.py"))
CONSOLE = InRunDir("console.py")  # python CONSOLE MODULE NAME ... acts as the script NAME, which may be missing


@dataclass(frozen=True)
class World:
    """Holds the values on which all nodes must agree. master_addr: numeric, or a name that preflight still resolves.

    addresses: host name -> that node's numeric address towards the master, if it is known. slots: host name -> number
    of ranks that the host would run, whatever the engine starts there. least: the fewest nodes of an elastic world, or
    0 if all nodes are needed.
    """

    run_id: str
    nodes: tuple[Node, ...]
    master_addr: str
    master_port: int
    addresses: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    least: int = 0

    @property
    def master(self) -> str:
        """Returns ADDRESS:PORT, with an IPv6 address in brackets."""
        return at_port(self.master_addr, self.master_port)

    @property
    def size(self) -> int:
        """Returns the number of ranks."""
        return sum(node.local_world_size for node in self.nodes)


@dataclass(frozen=True)
class Start:
    """Describes the engine's process on one node. command: a rank's argv. env: variables that the engine needs.
    local_rank_at: the index in `command` at which `--local_rank=N` is inserted, as DeepSpeed's launcher does; None if
    it is not inserted."""

    argv: tuple[Argument, ...]
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    local_rank_at: int | None = None

    def command_file(self) -> str:
        """Returns the text of command.json, which fleet/node/run/rank/spawn.py reads."""
        return json.dumps({"argv": list(self.command), "local_rank_at": self.local_rank_at})


@dataclass(frozen=True)
class Option:
    """Describes an option of `fleet launch` that one engine has; Job.engine_options has its value under `name`.

    name: without leading dashes. metavar: the name of its value in help, or None for a flag, whose value is True or
    missing. choices: the allowed values. many: whether it may be given several times; its value is then a tuple.
    """

    name: str
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    many: bool = False


class Engine(ABC):
    """Base of engines. modules: the modules that the training interpreter must have. program: whether SCRIPT is started
    without an interpreter. elastic: whether a run may go on with fewer nodes. options: the engine's options of `fleet
    launch`. owned: option of the launcher that fleet itself passes -> fleet's option for it, or None."""

    modules: tuple[str, ...] = ()
    program = False
    elastic = False
    options: tuple[Option, ...] = ()
    owned: Mapping[str, str | None] = {}

    def kind(self, job: Job) -> Kind:
        """Returns the kind of SCRIPT for this engine."""
        return "program" if self.program and job.kind == "script" else job.kind

    def ranks(self, job: Job) -> int | None:
        """Returns the number of ranks on each node, or None for the number in the inventory."""
        return None

    def check(self, job: Job) -> None:
        """Raises UsageError for options that conflict. All options are the engine's own."""
        refuse_owned(job, job.engine_args, self.owned)

    def needs(self, job: Job) -> tuple[str, ...]:
        """Returns the modules that the training interpreter must have for this job."""
        return self.modules

    def unread(self, job: Job) -> tuple[str, ...]:
        """Returns files on a node that the launcher would read by default, but does not read under fleet. By default,
        the launcher reads the first file whose $NAMEs are set."""
        return ()

    def on_gpus(self, job: Job) -> bool:
        """Returns whether ranks that find no GPU would each train alone, without a message."""
        return False

    def prepare(self, job: Job, folder: Path) -> Job:
        """Returns the job with the files that the engine reads on this machine. It is called before the plan is made.
        folder: the current folder."""
        return job

    @abstractmethod
    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        """Returns the process for this node. python: the training interpreter on the node. Pure."""


def ranks_env(world: World, node: Node) -> dict[str, str]:
    """Returns the variables that all ranks of a node share. fleet's spawn program adds RANK and LOCAL_RANK."""
    env = {
        "MASTER_ADDR": world.master_addr,
        "MASTER_PORT": str(world.master_port),
        "WORLD_SIZE": str(world.size),
        "LOCAL_WORLD_SIZE": str(node.local_world_size),
        "NODE_RANK": str(node.node_rank),
        "NNODES": str(len(world.nodes)),
    }
    return {**env, **visible_devices(node)}


def visible_devices(node: Node) -> dict[str, str]:
    """Returns CUDA_VISIBLE_DEVICES for the selected GPUs of this node, or {} if all are selected."""
    return {} if node.host.devices is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, node.host.devices))}


def as_written(options: Mapping[str, Any], *fleets: str) -> list[str]:
    """Returns options as arguments of a launcher whose options have the same names, but with underscores. Leaves out
    the options in `fleets`."""
    flags = {f"--{name.replace('-', '_')}": value for name, value in options.items() if name not in fleets}
    return [name if value is True else f"{name}={value}" for name, value in flags.items()]


def python_command(job: Job, python: str) -> tuple[str, ...]:
    """Returns a rank's argv. Python is unbuffered, so that lines are sent as soon as they are printed."""
    if job.kind == "program":
        return (job.script, *job.args)
    if job.kind == "module":
        return (python, "-u", "-m", job.script, *job.args)
    refuse(job)
    script = f"./{job.script}" if job.script.startswith("-") else job.script  # Python would take it for an option
    return (python, "-u", script, *job.args)
