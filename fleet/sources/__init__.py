"""Where hosts come from, and how they are reached, where that is no inventory's business. Adding one is a file, and a
line here; another package adds one by an entry point of the group `fleet.sources`."""

from __future__ import annotations

from fleet.registry import Registry
from fleet.sources.source import Source

INVENTORY = "ssh"  # hosts of an inventory
SOURCES: Registry[Source] = Registry(
    "source",
    Source,
    {"slurm": "fleet.sources.slurm:Slurm"},
    group="fleet.sources",
)
