"""Lists the nodes of a cluster, or of a partition, by sinfo."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fleet.errors import HostFailed, UsageError
from fleet.inventory.fields import FieldError, address, host_name
from fleet.model import Host, Inventory
from fleet.sources.slurm.naming import where
from fleet.sources.slurm.script import CLUSTERS
from fleet.sources.source import Condition
from fleet.transport.slurm import Done, ask_slurm, output_of, scontrol

FORMAT = "%N|%o|%G|%T|%E"
CLUSTER = re.compile(r"[\w.-]{1,64}", re.ASCII)
GPUS = re.compile(r"gpu:(?:[^:(,]+:)?(\d+)")


def slurm_host(name: str, at: str, slots: int | None) -> Host:
    """Returns a Slurm node as a host. Raises HostFailed if its name or address is not valid."""
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
    """Returns the nodes of a partition, or of all partitions, and the condition of each. Raises ConnectError if Slurm
    does not answer, and UsageError if there is no such partition."""
    argv = ["sinfo", "--noheader", "--Node", "--format", FORMAT]
    answer = ask_slurm([*argv, *([f"--partition={partition}"] if partition else [])])
    found = nodes(output_of(answer, "sinfo"))
    if not found:
        names = ask_slurm(["sinfo", "--noheader", "--format", "%R"])
        there = ", ".join(names.output.split() if isinstance(names, Done) else ()) or "none"
        raise UsageError(f"Slurm has no node in partition {partition or 'any'}", hint=f"partitions there are: {there}")
    hosts = tuple(host for host, _ in found.values())
    return Inventory(hosts, source="slurm"), {name: condition for name, (_, condition) in found.items()}


def own_cluster(environ: Mapping[str, str]) -> str | None:
    """Returns the name of the cluster whose job this process is in, or else of this machine's own cluster. Returns None
    if neither is known."""
    shown = environ.get("SLURM_CLUSTER_NAME") or ""
    if not shown and (found := re.search(r"^ClusterName\s*=\s*(\S+)", scontrol(["show", "config"]), re.M)):
        shown = found[1]
    return shown if CLUSTER.fullmatch(shown) else None


def requested(options: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Returns the clusters that a request names, as sbatch's --clusters has them, or None if it names none."""
    given = [found[1] for each in options if (found := re.fullmatch(r"(?:--clu\w*[= ]|-M[= ]?)(.+)", each))]
    return next(filter(None, [*reversed(given), *map(environ.get, CLUSTERS)]), None)


def names_in(cluster: str | None) -> set[str]:
    """Returns the names of all nodes of a cluster. Returns no names for several clusters, or if the names are not
    known. cluster: its name, or None for this machine's own cluster."""
    if cluster is not None and (cluster == "all" or not CLUSTER.fullmatch(cluster)):
        return set()
    answer = ask_slurm(["sinfo", "--all", "--noheader", "--Node", "--format", "%N", *where(cluster)])
    lines = answer.output.splitlines() if isinstance(answer, Done) else []
    return {line.strip() for line in lines if not line.startswith("CLUSTER:")}
