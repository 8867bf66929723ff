"""The transport within a Slurm allocation: its hosts are reached by a step of the job that they belong to (step.py).

What leaves its session is ended with its step, by its cgroup. So whatever a run starts hangs on the step of the process
that leads it; another command of fleet has a step of its own, which shares CPUs, memory and GPUs with that one
(`--overlap`), and ends with the command.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any

from fleet.model import Host
from fleet.node.delivery.chain.link import Link
from fleet.transport.base import Cancel, ConnectOptions, Session
from fleet.transport.relay import RelayChannel
from fleet.transport.slurm import job_of, jobs_of, why_over
from fleet.transport.step import Step
from fleet.transport.streams import Started


class SrunSession(Started[RelayChannel]):
    """A host of the step. address: where its agent dialled from."""

    def __init__(self, step: Step, host: Host, link: Link, seconds: float) -> None:
        super().__init__(host, link.sock.getpeername()[0])
        self._step, self._seconds = step, seconds

    def _channel(self, command: str) -> RelayChannel:
        return self._step.start(self.host, command, self._seconds)


class SrunTransport:
    """Processes on the nodes of an allocation that this one is in."""

    name = "srun"

    def __init__(self, options: ConnectOptions, *, hosts: Iterable[Host] = (), **_: Any) -> None:
        self._seconds, self._hosts = options.connect_timeout, tuple(hosts)
        self._job, self._jobs = job_of(os.environ), jobs_of(os.environ)
        self._lock = threading.Lock()
        self._steps: dict[str, Step] = {}

    def connect(self, host: Host, cancel: Cancel) -> Session:
        job = self._jobs.get(host.name, self._job)
        with self._lock:
            if job not in self._steps:
                hosts = [it for it in self._hosts if self._jobs.get(it.name, self._job) == job]
                self._steps[job] = Step(job, hosts)
            step = self._steps[job]
        return SrunSession(step, host, step.agent(host, self._seconds, cancel), self._seconds)

    def resolve(self, host: Host) -> None:
        return None

    def route(self, host: Host) -> tuple[Host, ...]:
        return ()

    def ended(self) -> tuple[str, int] | None:
        """Why Slurm ends the job, if it does."""
        signalled = [job for job, step in self._steps.items() if step.signalled]
        for job in signalled or [self._job]:
            nodes = [host.name for host in self._hosts if self._jobs.get(host.name, job) == job]
            if (why := why_over(job, nodes, signalled=bool(signalled))) is not None:
                return why
        return None

    def close(self) -> None:
        with self._lock:
            steps, self._steps = self._steps, {}
        for step in steps.values():
            step.close()
