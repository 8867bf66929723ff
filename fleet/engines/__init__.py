"""Engines: (Job, Node) -> the process to start on that node. Adding one is a file and a line here."""

from __future__ import annotations

from fleet.engines.base import Engine
from fleet.engines.command import AnyCommand
from fleet.engines.deepspeed import DeepSpeed
from fleet.engines.torchrun import Torchrun
from fleet.errors import UsageError

_ALL: tuple[Engine, ...] = (Torchrun(), DeepSpeed(), AnyCommand())
ENGINES = {e.name: e for e in _ALL}


def engine(name: str) -> Engine:
    """The engine of that name; UsageError when there is none."""
    try:
        return ENGINES[name]
    except KeyError:
        raise UsageError(f"no engine '{name}'", hint=f"one of: {', '.join(ENGINES)}") from None
