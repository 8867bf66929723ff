"""What an engine is: it turns a job and a node into the one process that fleet's supervisor starts there.

The training command never passes through an engine's own argument parser: torchrun eats options it takes for
its own and rewrites `$$`, DeepSpeed splices `--local_rank` in. Engines are told to start fleet's spawn program,
which finds the command in `command.json` beside it in the run's folder on the node and hands it to rank.py.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.engines.slips import refuse
from fleet.model import Job, Node


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


@dataclass(frozen=True)
class World:
    """All that nodes must agree on. master_addr: numeric, or a name that preflight still resolves.

    addresses: host name -> that node's own numeric address towards the master, where it is known.
    """

    run_id: str
    nodes: tuple[Node, ...]
    master_addr: str
    master_port: int
    addresses: Mapping[str, str] = field(default_factory=dict)

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
        """The text of command.json, read by fleet/node/run/spawn.py."""
        return json.dumps({"argv": list(self.command), "local_rank_at": self.local_rank_at})


class Engine(ABC):
    """modules: what the training interpreter must be able to import. restarts: it obeys Job.max_restarts.
    program: it starts SCRIPT as it is, and no interpreter on it."""

    modules: tuple[str, ...] = ()
    restarts = False
    program = False

    @abstractmethod
    def start(self, job: Job, world: World, node: Node, python: str) -> Start:
        """The process for this node. python: the training interpreter as the node knows it. Pure."""


def python_command(job: Job, python: str) -> tuple[str, ...]:
    """A rank's argv for a Python script, unbuffered so that its lines come when they are printed."""
    refuse(job)
    return (python, "-u", job.script, *job.args)
