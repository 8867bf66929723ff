"""Defines the source `k8s`: pods that a manifest requests. Each pod runs its own part of the run, as with `--on
env`."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.engines.base import Option
from fleet.errors import UsageError
from fleet.model import Inventory
from fleet.sources.kubernetes.manifest import KINDS
from fleet.sources.slurm.script import OPTIONS as OF_SLURM
from fleet.sources.source import Source

SHARED = ("mem", "cpus-per-task")  # options of sbatch that mean the same for a pod
OPTIONS = (
    Option("as", "What the cluster has an operator for [jobset]; a job takes none.", choices=tuple(KINDS)),
    Option("queue", "Kueue's queue.", "NAME"),
    Option("rdma", "A resource for RDMA, and how many of it a pod gets.", "RESOURCE[:N]"),
    Option("volume", "A claim (PVC), and where pods have it.", "CLAIM:PATH", many=True),
    *(option for option in OF_SLURM if option.name in SHARED),
)


class Kubernetes(Source):
    """Represents the pods of a manifest that no user has applied yet."""

    name, transport, options, on_paper = "k8s", "local", OPTIONS, True
    asked = "k8s, with --container, --mem and --cpus-per-task"

    def detect(self, environ: Mapping[str, str]) -> str | None:
        return None

    def inventory(self, environ: Mapping[str, str]) -> Inventory:
        raise UsageError(
            "--on k8s writes a manifest, and reaches no pod",
            hint="fleet launch --on k8s --dry-run --container IMAGE --nproc-per-node 8 train.py",
        )
