"""Engines: (Job, Node) -> the process to start on that node. Adding one is a file and a line here; another package adds
one by an entry point of the group `fleet.engines`."""

from __future__ import annotations

from fleet.engines.base import Engine
from fleet.engines.slips import is_shells
from fleet.registry import Registry

DEFAULT = "torchrun"
ENGINES: Registry[Engine] = Registry(
    "engine",
    Engine,
    {
        "torchrun": "fleet.engines.torchrun:Torchrun",
        "deepspeed": "fleet.engines.deepspeed:DeepSpeed",
        "accelerate": "fleet.engines.accelerate:Accelerate",
        "colossalai": "fleet.engines.colossalai:ColossalAI",
        "command": "fleet.engines.command:AnyCommand",
    },
    group="fleet.engines",
)
engine = ENGINES.get


def suited(script: str) -> tuple[str, dict[str, str]]:
    """(engine, its options) where none was asked for: a shell script is started once on each node, as by hand."""
    return ("command", {"per": "node"}) if is_shells(script) else (DEFAULT, {})
