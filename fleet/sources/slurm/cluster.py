"""All nodes of a cluster, or of a partition: as sinfo has them."""

from __future__ import annotations

import re

from fleet.errors import HostFailed, UsageError
from fleet.inventory.fields import FieldError, address, host_name
from fleet.model import Host, Inventory
from fleet.sources.source import Condition
from fleet.transport.slurm import run_slurm

FORMAT = "%N|%o|%G|%T|%E"
GPUS = re.compile(r"gpu:(?:[^:(,]+:)?(\d+)")


def slurm_host(name: str, at: str, slots: int | None) -> Host:
    """Returns a node of Slurm's as a host. HostFailed where its name or address is none."""
    try:
        return Host(host_name(name), address(at), slots=slots)
    except FieldError as error:
        raise HostFailed(f"Slurm names a node so: {error}", hint="scontrol show node shows it") from None


def nodes(text: str) -> dict[str, tuple[Host, Condition]]:
    """Returns the nodes of sinfo's lines; a node has one line for each of its partitions."""
    found = dict[str, tuple[Host, Condition]]()
    for line in text.splitlines():
        if line.count("|") < 4:
            continue
        name, at, gres, state, reason = (field.strip() for field in line.split("|", 4))
        gpus = sum(map(int, GPUS.findall(gres)))
        host = slurm_host(name, at or name, gpus or None)
        found[name] = host, Condition(state, "" if reason == "none" else reason)
    return found


def of_partition(partition: str | None) -> tuple[Inventory, dict[str, Condition]]:
    """HostFailed where Slurm does not answer; UsageError where there is no such partition."""
    argv = ["sinfo", "--noheader", "--Node", "--format", FORMAT]
    status, answer, errors = run_slurm([*argv, *([f"--partition={partition}"] if partition else [])])
    if status:
        raise HostFailed(f"sinfo: {errors.strip() or status}", hint="does slurmctld answer? scontrol ping")
    found = nodes(answer)
    if not found:
        _, names, _ = run_slurm(["sinfo", "--noheader", "--format", "%R"])
        there = ", ".join(names.split()) or "none"
        raise UsageError(f"Slurm has no node in partition {partition or 'any'}", hint=f"partitions there are: {there}")
    hosts = tuple(host for host, _ in found.values())
    return Inventory(hosts, source="slurm"), {name: condition for name, (_, condition) in found.items()}
