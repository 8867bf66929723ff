"""Writes slurm.conf, gres.conf and cgroup.conf for a few hosts (Slurm 22.05 and later)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONTROLLER = """\
ClusterName={cluster}
SlurmctldHost={controller}
SlurmUser={user}
AuthType=auth/munge
ProctrackType=proctrack/cgroup
TaskPlugin={tasks}
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
GresTypes=gpu
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
JobCompType=jobcomp/filetxt
JobCompLoc=/var/log/slurm/jobcomp.log
"""
CGROUP_CONF = "ConstrainDevices=yes\nConstrainRAMSpace=yes\n"


@dataclass(frozen=True)
class SlurmNode:
    """Describes a node for Slurm. memory: MiB. gpus: device files. address, hostname: None if they equal the name."""

    name: str
    cpus: int
    memory: int
    gpus: tuple[str, ...] = ()
    address: str | None = None
    hostname: str | None = None


def node_of(name: str, address: str, facts: Mapping[str, Any]) -> SlurmNode:
    """Returns the node that a host's facts describe. The node declares less memory than the host has, because Slurm
    drains a node that has less memory than it declares."""
    memory = int((facts.get("memory") or {}).get("total") or 0) >> 20
    gpus = tuple(f"/dev/nvidia{gpu.get('minor', gpu['index'])}" for gpu in facts.get("gpus", ()))
    cpus = int((facts.get("cpu") or {}).get("count") or 1)
    own = str(facts.get("hostname") or "").partition(".")[0]
    return SlurmNode(
        name,
        cpus,
        max(1, memory - max(memory // 50, 256)),
        gpus,
        address if address != name else None,
        own if own != name and re.fullmatch("[A-Za-z0-9_-]{1,64}", own) else None,
    )


def node_line(name: str, **values: object) -> str:
    """Returns a node's line of slurm.conf, without empty fields."""
    return f"NodeName={name}{''.join(f' {key}={value}' for key, value in values.items() if value)} State=UNKNOWN\n"


def slurm_conf(
    nodes: Sequence[SlurmNode], *, cluster: str, partition: str, user: str = "slurm", tasks: str = "task/affinity"
) -> str:
    """Returns slurm.conf with one partition of all nodes. The first node is the controller. user: the account of the
    controller's daemon. tasks: TaskPlugin, the plugins that bind and limit a job's processes."""
    lines = [
        node_line(
            node.name,
            NodeHostname=node.hostname,
            NodeAddr=node.address,
            CPUs=node.cpus,
            RealMemory=node.memory,
            Gres=node.gpus and f"gpu:{len(node.gpus)}",
        )
        for node in nodes
    ]
    controller = nodes[0].hostname or nodes[0].name
    controller += f"({nodes[0].address})" if nodes[0].address else ""
    head = CONTROLLER.format(cluster=cluster, controller=controller, user=user, tasks=tasks)
    return head + "".join(lines) + f"PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"


def gres_conf(nodes: Sequence[SlurmNode]) -> str:
    """Returns gres.conf: the GPU device files of each node."""
    lines = [f"NodeName={node.name} Name=gpu File={path}\n" for node in nodes for path in node.gpus]
    return "AutoDetect=off\n" + "".join(lines)
