"""Reads the hosts of a Slurm allocation from its variables and from `scontrol`."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping

from fleet.errors import UsageError
from fleet.inventory.fields import FieldError
from fleet.inventory.nodeset import expand
from fleet.model import Host, Inventory
from fleet.sources.slurm.cluster import GPUS, slurm_host
from fleet.transport.slurm import fields, job_of, route_to, scontrol

LOOPBACK = "127."


def counts(text: str) -> list[int]:
    """Returns the count of each node from SLURM_TASKS_PER_NODE or SLURM_JOB_CPUS_PER_NODE: "8(x2),4" is 8, 8, 4. Raises
    ValueError for other text."""
    found = list[int]()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part.strip())
        if match is None or int(match[2] or 1) > 1 << 16:
            raise ValueError(f"{text!r} is no count a node")
        found += [int(match[1])] * int(match[2] or 1)
        if len(found) > 1 << 16:
            raise ValueError("it counts more than 65536 nodes")
    return found


def gpus(job: str) -> dict[str, int]:
    """Returns node -> number of GPUs, from the output of `scontrol show job -d`."""
    found = dict[str, int]()
    for line in job.splitlines():
        values = fields(line)
        if line.startswith(" ") and "Nodes" in values and "CPU_IDs" in values:
            number = sum(map(int, GPUS.findall(values.get("GRES", ""))))
            found |= dict.fromkeys(expand(values["Nodes"]), number)
    return found


def addresses(nodes: str) -> Iterator[tuple[str, str]]:
    """Yields (node, address), from the output of `scontrol show node -o`."""
    for line in nodes.splitlines():
        values = fields(line)
        if "NodeName" in values:
            yield values["NodeName"], values.get("NodeAddr", values["NodeName"])


def numeric(address: str) -> str:
    """Returns the IP of an address, or the address itself if it has no IP. Ranks connect to the IP, because perhaps
    only Slurm resolves the name."""
    try:
        return str(socket.getaddrinfo(address, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return address


def hosts(environ: Mapping[str, str], job: str = "", nodes: str = "") -> tuple[Host, ...]:
    """Returns the hosts of an allocation. job, nodes: the output of `scontrol show job -d` and of `scontrol show node
    -o`. A host's slots are the number of its GPUs, or else of its tasks. Raises UsageError for variables that are not
    valid."""
    number, parts = job_of(environ), environ.get("SLURM_HET_SIZE", "1")
    if parts != "1":
        raise UsageError(
            f"job {number} is a heterogeneous one, of {parts} parts: fleet takes no such job",
            hint="ask for nodes of one kind, or start a fleet within each part",
        )
    listed = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    try:
        names = expand(listed) if listed else []
        tasks = counts(environ["SLURM_TASKS_PER_NODE"]) if "SLURM_TASKS_PER_NODE" in environ else []
    except (ValueError, FieldError) as error:
        raise UsageError(f"job {number}: {error}") from None
    if not names:
        raise UsageError(f"job {number} has no nodes: SLURM_JOB_NODELIST is not set")
    tasks = tasks if len(tasks) == len(names) else [1] * len(names)
    here = environ.get("SLURM_GPUS_ON_NODE", "") if not job else ""  # for a node without scontrol
    have = gpus(job) if not here.isdecimal() else dict.fromkeys(names, int(here))
    where = dict(addresses(nodes))
    found = {name: numeric(where.get(name, name)) for name in names}
    others = [address for address in found.values() if not address.startswith(LOOPBACK)]
    for name, address in found.items():
        if address.startswith(LOOPBACK) and others:  # this node: its own name resolves to loopback here
            found[name] = route_to(others[0]) or address
    return tuple(slurm_host(name, found[name], have.get(name) or task) for name, task in zip(names, tasks, strict=True))


def inventory_of(environ: Mapping[str, str]) -> Inventory:
    """Returns the inventory of the allocation that this process is in."""
    job, listed = job_of(environ), environ.get("SLURM_JOB_NODELIST", "")
    shown = scontrol(["show", "job", "-d", environ.get("SLURM_ARRAY_JOB_ID", job)])
    nodes = scontrol(["show", "node", "-o", listed]) if listed else ""
    return Inventory(hosts(environ, shown, nodes), source=f"slurm:{job}")
