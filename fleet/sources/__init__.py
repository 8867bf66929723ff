"""Provides hosts that no inventory lists, and ways to reach them. A new source is a file, and a line here. Another
package adds a source by an entry point of the group `fleet.sources`."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.model import Inventory
from fleet.registry import Registry
from fleet.sources.source import Source
from fleet.transport import DEFAULT

INVENTORY = "ssh"  # hosts of an inventory
SOURCES: Registry[Source] = Registry(
    "source",
    Source,
    {
        "slurm": "fleet.sources.slurm.source:Slurm",
        "env": "fleet.sources.environment:Environment",
        "k8s": "fleet.sources.kubernetes.source:Kubernetes",
    },
    group="fleet.sources",
)


def hosts_on(name: str, transport: str, environ: Mapping[str, str]) -> tuple[Inventory, str]:
    """Returns the hosts of a source, and the transport to them: the given one, or the source's own in place of the
    default. Raises UsageError if there is no such source, or if it has no hosts for this process."""
    source = SOURCES.get(name)
    return source.inventory(environ), source.transport if transport == DEFAULT else transport


def no_hosts(name: str) -> Inventory:
    """Returns an empty inventory, for hosts that a source has not allocated yet."""
    return Inventory((), source=name)
