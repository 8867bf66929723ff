"""Defines the source `slurm`: an allocation of Slurm, and the queue from which an allocation is requested."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, MutableMapping, Sequence

from fleet.errors import UsageError
from fleet.model import Inventory
from fleet.protocol.state import is_run_id
from fleet.sources.queue import Queue
from fleet.sources.slurm import array
from fleet.sources.slurm.queue import SlurmQueue
from fleet.sources.slurm.script import OPTIONS, REQUEUES, RUN
from fleet.sources.source import Condition, Source
from fleet.transport.base import JobEnd
from fleet.transport.slurm import job_of, jobs_of, shown_job, why_over


class Slurm(Source):
    """Represents the allocation that this process is in."""

    name, transport, options, asked = "slurm", "srun", OPTIONS, "slurm, from a login node"

    def detect(self, environ: Mapping[str, str]) -> str | None:
        job = environ.get("SLURM_JOB_ID")
        has_nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_HET_SIZE")
        return f"job {job} of Slurm" if job and has_nodes else None

    def job(self, environ: Mapping[str, str]) -> str | None:
        if self.detect(environ) is None:
            return None
        array, index = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
        return f"{array}_{index}" if array else environ["SLURM_JOB_ID"]

    def inventory(self, environ: Mapping[str, str]) -> Inventory:
        from fleet.sources.slurm.allocation import inventory_of  # node sets take long to import

        if array.WAIT in environ and not jobs_of(environ):
            os.environ.update(array.gathered(environ))  # the transport and the cleanup read them, too
            environ = os.environ
        return inventory_of(environ)

    def known(self, partition: str | None) -> tuple[Inventory, Mapping[str, Condition]]:
        from fleet.sources.slurm.cluster import of_partition

        return of_partition(partition)

    def scope(self, environ: Mapping[str, str]) -> str:
        from fleet.sources.slurm.cluster import own_cluster

        return ":".join(filter(None, (self.name, own_cluster(environ))))

    def nodes_for(self, options: Sequence[str], environ: Mapping[str, str]) -> tuple[str, Collection[str]]:
        from fleet.sources.slurm.cluster import names_in, requested

        cluster = requested(options, environ)
        return (f"{self.name}:{cluster}", names_in(cluster)) if cluster else (self.scope(environ), names_in(None))

    def run_of(self, environ: MutableMapping[str, str]) -> tuple[str | None, int]:
        run = environ.pop(RUN, "")
        return run if is_run_id(run) else None, _restarts(environ)

    def requeued(self, environ: Mapping[str, str]) -> bool:
        most = environ.get(REQUEUES, "0")
        return most.isdecimal() and _restarts(environ) < int(most)

    def ended(self, environ: Mapping[str, str], *, signalled: bool) -> JobEnd | None:
        return why_over(job_of(environ), signalled=signalled)

    def enter(self, job: str) -> dict[str, str]:
        if "_" in job:
            tasks = [it for it in array.tasks_of(job.partition("_")[0]) if it.state == "RUNNING"]
            return array.entered([it for it in tasks if it.name == job or job.endswith("_0")])
        shown = shown_job(job)
        if shown.get("JobState") != "RUNNING":
            state = shown.get("JobState", "it is over, or slurmctld does not answer")
            raise UsageError(f"job {job} of Slurm does not run: {state}", hint=f"squeue --jobs={job}")
        return {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": shown.get("NodeList", "")}

    def enter_all(self) -> dict[str, str]:
        return array.entered(array.of_user())

    def queue(self) -> Queue:
        return SlurmQueue()


def _restarts(environ: Mapping[str, str]) -> int:
    count = environ.get("SLURM_RESTART_COUNT", "0")
    return int(count) if count.isdecimal() else 0
