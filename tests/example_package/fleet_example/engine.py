"""An engine: one process a slot, without a launcher, that knows its number."""

from __future__ import annotations

from fleet.engines.base import SPAWN, Engine, Option, Start
from fleet.model import Job, Node


class Counted(Engine):
    """Ranks of a plain program."""

    options = (Option("greeting", "What each rank finds in $GREETING.", "TEXT"),)

    def start(self, job: Job, world: object, node: Node, python: str) -> Start:
        argv = (*SPAWN, str(node.first_rank), str(node.local_world_size))
        greeting = str(job.engine_options.get("greeting", "hello"))
        return Start(argv, (python, "-u", job.script, *job.args), {"GREETING": greeting})


class Refusing(Engine):
    """One that cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("its licence has expired")

    def start(self, job: Job, world: object, node: Node, python: str) -> Start:
        raise NotImplementedError
