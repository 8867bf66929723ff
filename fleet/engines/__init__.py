"""Finds the engine of a job, which defines the process to start on a node.

A new engine is a module and a line in names.py. Another package adds one by an entry point of the group
`fleet.engines`."""

from __future__ import annotations

from fleet.engines.base import Engine
from fleet.engines.names import DEFAULT as DEFAULT
from fleet.engines.names import OWN
from fleet.engines.slips import is_shells
from fleet.errors import UsageError
from fleet.model import Job
from fleet.registry import Registry

ENGINES: Registry[Engine] = Registry("engine", Engine, OWN, group="fleet.engines")
engine = ENGINES.get


def suited(script: str) -> tuple[str, dict[str, str]]:
    """Returns (engine, its options) for a script without --engine. A shell script is started once on each node, as the
    user would start it by hand."""
    return ("command", {"per": "node"}) if is_shells(script) else (DEFAULT, {})


def check(job: Job) -> Engine:
    """Returns the job's engine. Raises UsageError for options that it does not have, or that conflict."""
    chosen = engine(job.engine)
    for name in job.engine_options.keys() - {option.name for option in chosen.options}:
        owners = [own for own in OWN if name in {option.name for option in engine(own).options}]
        hint = f"it is for --engine {' or '.join(owners)}" if owners else None
        raise UsageError(f"--{name}: engine {job.engine} has no such option", hint=hint)
    chosen.check(job)
    return chosen
