"""The source `slurm`: an allocation, and the queue in which one is requested."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fleet.errors import UsageError
from fleet.model import Inventory
from fleet.protocol.state import is_run_id
from fleet.sources.queue import Queue
from fleet.sources.slurm import array
from fleet.sources.slurm.queue import SlurmQueue
from fleet.sources.slurm.script import OPTIONS
from fleet.sources.source import Condition, Source
from fleet.transport.slurm import job_of, jobs_of, shown_job


class Slurm(Source):
    """The allocation that this process is in."""

    name, transport, options, asked = "slurm", "srun", OPTIONS, "slurm, from a login node"

    def detect(self, environ: Mapping[str, str]) -> str | None:
        job = environ.get("SLURM_JOB_ID")
        return f"job {job} of Slurm" if job and environ.get("SLURM_JOB_NODELIST") else None

    def inventory(self, environ: Mapping[str, str]) -> Inventory:
        from fleet.sources.slurm.allocation import inventory_of  # node sets take long to import

        if array.WAIT in environ and not jobs_of(environ):
            os.environ.update(array.gathered(environ))  # for the transport, and for cleanup
            environ = os.environ
        return inventory_of(environ)

    def known(self, partition: str | None) -> tuple[Inventory, Mapping[str, Condition]]:
        from fleet.sources.slurm.cluster import of_partition

        return of_partition(partition)

    def run_of(self, environ: Mapping[str, str]) -> tuple[str | None, int]:
        again = environ.get("SLURM_RESTART_COUNT", "0")
        comment = shown_job(job_of(environ)).get("Comment", "")
        run = comment.removeprefix(array.MARK)
        return run if comment != run and is_run_id(run) else None, int(again) if again.isdecimal() else 0

    def enter(self, job: str) -> dict[str, str]:
        if "_" in job:
            return array.entered([it for it in array.tasks_of(job.partition("_")[0]) if it.state == "RUNNING"])
        shown = shown_job(job)
        if shown.get("JobState") != "RUNNING":
            state = shown.get("JobState", "over")
            raise UsageError(f"job {job} of Slurm does not run: {state}", hint=f"squeue --jobs={job}")
        return {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": shown.get("NodeList", "")}

    def enter_all(self) -> dict[str, str]:
        return array.entered(array.of_user())

    def queue(self) -> Queue:
        return SlurmQueue()
