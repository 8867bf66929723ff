"""Defines an engine: it turns a job and a node into the one process that fleet's supervisor starts there.

The training command never passes through an engine's own argument parser: torchrun takes options for its own and
rewrites `$$`, DeepSpeed inserts `--local_rank`. Engines start fleet's spawn program instead. It finds the command in
`command.json` next to it, in the run's folder on the node, and passes it to rank.py."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.engines.slips import refuse
from fleet.model import Job, Kind, Node


@dataclass(frozen=True)
class NodePython:
    """In an argv: the interpreter that runs fleet's own programs on the node, isolated (-I -S)."""

    def as_spec(self) -> dict[str, Any]:
        return {"python": True}

    def __str__(self) -> str:
        return "{python}"


@dataclass(frozen=True)
class InRunDir:
    """In an argv: the absolute path of a file in the run's folder on the node."""

    name: str

    def as_spec(self) -> dict[str, Any]:
        return {"run_dir": self.name}

    def __str__(self) -> str:
        return f"{{run_dir}}/{self.name}"


Word = str | NodePython | InRunDir

SPAWN: tuple[Word, ...] = (NodePython(), InRunDir("spawn.py"))
CONSOLE = InRunDir("console.py")  # python CONSOLE MODULE NAME ...: as the console script NAME, which need not be there


@dataclass(frozen=True)
class World:
    """All that nodes must agree on. master_addr: numeric, or a name that preflight still resolves.

    addresses: host name -> that node's own numeric address towards the master, where it is known. slots: host name ->
    the ranks that it would run, whatever the engine starts there. least: of an elastic
    world, nodes that must be left; 0: all must.
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
        """ADDRESS:PORT, an IPv6 address in brackets."""
        address = f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr
        return f"{address}:{self.master_port}"

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(node.local_world_size for node in self.nodes)


@dataclass(frozen=True)
class Start:
    """The engine's process on one node. command: a rank's argv. env: variables the engine needs.

    local_rank_at: where in `command` to insert `--local_rank=N`, as DeepSpeed's launcher does; None for nowhere.
    """

    argv: tuple[Word, ...]
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    local_rank_at: int | None = None

    def command_file(self) -> str:
        """The text of command.json, read by fleet/node/run/rank/spawn.py."""
        return json.dumps({"argv": list(self.command), "local_rank_at": self.local_rank_at})


@dataclass(frozen=True)
class Option:
    """An option of `fleet launch` that one engine understands; Job.engine_options has its value under `name`.

    name: as it is written, without dashes in front. metavar: what its value is called; None for a flag, which is True
    or not there. choices: the values that it takes. many: it may be given several times, and is a tuple.
    """

    name: str
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    many: bool = False


class Engine(ABC):
    """modules: what the training interpreter must be able to import. program: it starts SCRIPT as it is, and no
    interpreter on it. elastic: it goes on with fewer nodes. options: what `fleet launch` takes for it."""

    modules: tuple[str, ...] = ()
    program = False
    elastic = False
    options: tuple[Option, ...] = ()

    def kind(self, job: Job) -> Kind:
        """Returns what SCRIPT is to this engine."""
        return "program" if self.program and job.kind == "script" else job.kind

    def ranks(self, job: Job) -> int | None:
        """Ranks on each node, whatever the inventory has; None: the inventory's number."""
        return None

    def check(self, job: Job) -> None:  # noqa: B027
        """UsageError for options that do not fit together; it has them all."""

    def needs(self, job: Job) -> tuple[str, ...]:
        """Returns the modules that the training interpreter must be able to import for this job."""
        return self.modules

    def unread(self, job: Job) -> tuple[str, ...]:
        """Files on a node, $NAMEs in them, of which its launcher would read by itself the first whose $NAMEs are set;
        under fleet it reads none."""
        return ()

    def on_gpus(self, job: Job) -> bool:
        """Is true where ranks that find no GPU would each train alone, without a message."""
        return False

    def prepare(self, job: Job, folder: Path) -> Job:
        """The job with what the engine reads on this machine, before there is a plan. folder: the current one."""
        return job

    @abstractmethod
    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        """The process for this node. python: the training interpreter as the node knows it. Pure."""


def ranks_env(world: World, node: Node) -> dict[str, str]:
    """Returns the variables that ranks of fleet's spawn program share on a node; it adds RANK and LOCAL_RANK."""
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
    """The GPUs that a selection left to this node."""
    return {} if node.host.devices is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, node.host.devices))}


def as_written(options: Mapping[str, Any], *fleets: str) -> list[str]:
    """Options that a launcher has under the same names, with underscores; without those that are fleet's."""
    flags = {f"--{name.replace('-', '_')}": value for name, value in options.items() if name not in fleets}
    return [name if value is True else f"{name}={value}" for name, value in flags.items()]


def python_command(job: Job, python: str) -> tuple[str, ...]:
    """A rank's argv: for Python unbuffered, so that its lines come when they are printed."""
    if job.kind == "program":
        return (job.script, *job.args)
    if job.kind == "module":
        return (python, "-u", "-m", job.script, *job.args)
    refuse(job)
    script = f"./{job.script}" if job.script.startswith("-") else job.script  # Python would take it for an option
    return (python, "-u", script, *job.args)
