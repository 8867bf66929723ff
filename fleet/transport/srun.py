"""Defines the transport within a Slurm allocation, which reaches hosts by a job step (step.py).

When a step ends, Slurm ends all processes in the step's cgroup, also those with a session of their own. So the
processes of a run last as long as the step of the head process that leads it. Each other command of fleet has a step of
its own (`--overlap`: it shares CPUs, memory and GPUs with the others), which ends with the command.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.node.delivery.chain.link import Link
from fleet.transport.base import Cancel, ConnectOptions, JobEnd, Once, Session, Unrouted
from fleet.transport.relay import RelayChannel
from fleet.transport.slurm import PAUSE_SECONDS, job_of, jobs_of, why_over
from fleet.transport.step import Step
from fleet.transport.streams import Started

IMAGE_SECONDS = 900.0  # pyxis, Slurm's container plugin, has so long to fetch and unpack an image
UNANSWERED_SECONDS = 60.0  # a step is requested again for so long, in case slurmctld is being restarted


class SrunSession(Started[RelayChannel]):
    """Gives access to a host of the step. address: the address from which the host's agent connected."""

    def __init__(self, step: Step, host: Host, link: Link, seconds: float) -> None:
        super().__init__(host, link.sock.getpeername()[0])
        self._step, self._seconds = step, seconds

    def _channel(self, command: str) -> RelayChannel:
        return self._step.start(self.host, command, self._seconds)


class SrunTransport(Unrouted):
    """Starts processes on the nodes of the allocation that this process runs in."""

    name = "srun"

    def __init__(self, options: ConnectOptions, *, hosts: Iterable[Host] = (), **_: Any) -> None:
        self._seconds, self._hosts = options.connect_timeout, tuple(hosts)
        self._job, self._jobs = job_of(os.environ), jobs_of(os.environ)
        # job id -> its step. A step that slurmctld did not answer is requested again
        self._steps = Once[Step](lambda made: made.exception() is None and not made.result().unanswered)
        self._closed = False
        self._container: Sequence[str] = ()

    def contain(self, options: Sequence[str]) -> None:
        """Has the steps of this transport start in a container. options: srun's options for the container. Call
        contain() before connect()."""
        self._container = options

    def connect(self, host: Host, cancel: Cancel) -> Session:
        job, until = self._jobs.get(host.name, self._job), time.monotonic() + UNANSWERED_SECONDS
        hosts = [it for it in self._hosts if self._jobs.get(it.name, self._job) == job]
        seconds = max(self._seconds, IMAGE_SECONDS) if self._container else self._seconds
        while True:
            step = self._steps.get(job, lambda: Step(job, hosts, self._container))
            if self._closed:  # close() was called while the step was made
                step.close()
            try:
                return SrunSession(step, host, step.agent(host, seconds, cancel), self._seconds)
            except ConnectError:
                if not step.unanswered or time.monotonic() > until or cancel.wait(PAUSE_SECONDS):
                    raise
            step.close()

    def ended(self, seconds: float, signalled: bool) -> JobEnd | None:
        """Returns why Slurm ends the job, if it does. signalled: this process was sent a signal."""
        ended = [step.job for step in self._steps.all() if step.signalled]
        jobs = {
            job: [it.name for it in self._hosts if self._jobs.get(it.name, job) == job] for job in ended or [self._job]
        }
        why = partial(why_over, signalled=signalled or bool(ended), seconds=seconds)
        return next(filter(None, (why(job, nodes) for job, nodes in jobs.items())), None)

    def pass_on(self, signum: int) -> None:
        for step in self._steps.all():
            step.pass_on(signum)

    def close(self) -> None:
        self._closed = True
        for step in self._steps.all():
            step.close()
