"""slurm.conf, gres.conf and cgroup.conf for a handful of hosts (Slurm 22.05 and later)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CONTROLLER = """\
ClusterName={cluster}
SlurmctldHost={controller}
SlurmUser={user}
AuthType=auth/munge
ProctrackType=proctrack/cgroup
TaskPlugin=task/affinity
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


@dataclass(frozen=True)
class SlurmNode:
    """memory: MiB. gpus: a device file each."""

    name: str
    cpus: int
    memory: int
    gpus: tuple[str, ...] = ()
    address: str | None = None


def slurm_conf(nodes: Sequence[SlurmNode], *, cluster: str, partition: str, user: str = "slurm") -> str:
    """One partition of all; the first node is the controller. user: whose process that is."""
    lines = [
        f"NodeName={node.name}"
        + (f" NodeAddr={node.address}" if node.address else "")
        + f" CPUs={node.cpus} RealMemory={node.memory}"
        + (f" Gres=gpu:{len(node.gpus)}" if node.gpus else "")
        + " State=UNKNOWN\n"
        for node in nodes
    ]
    head = CONTROLLER.format(cluster=cluster, controller=nodes[0].name, user=user)
    return head + "".join(lines) + f"PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"


def gres_conf(nodes: Sequence[SlurmNode]) -> str:
    """The devices of each node."""
    lines = [f"NodeName={node.name} Name=gpu File={path}\n" for node in nodes for path in node.gpus]
    return "AutoDetect=off\n" + "".join(lines)
