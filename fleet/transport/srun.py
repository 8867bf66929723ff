"""The transport within a Slurm allocation: one step holds an agent on each node, which starts what fleet asks for.

What leaves its session is ended with its step, by its cgroup. So whatever a run starts hangs on the step of the process
that leads it; another command of fleet has a step of its own, which shares CPUs, memory and GPUs with that one
(`--overlap`), and ends with the command.

srun takes its options from SLURM_* too, and a batch script's environment is full of them: it is given none.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from fleet.errors import ConnectError, UsageError
from fleet.model import Host
from fleet.node.delivery.chain.link import NONSENSE, Link, shut, tls_context
from fleet.transport.base import Cancel, ConnectOptions, Session
from fleet.transport.certificate import make_certificate
from fleet.transport.program import bootstrap, packed
from fleet.transport.relay import RelayChannel
from fleet.transport.slurm import WITHIN_SECONDS, job_of, jobs_of, own_environment, why_over

LINE_BYTES = 1 << 16
SLICE_SECONDS = 0.1
STRANGERS = 64  # who dial at once, each with a handshake's time
END_SECONDS = 5.0
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# what a step says of its own tasks: a library that reads it takes itself for one of them
OF_TASKS = (
    "SLURM_(STEP.*|TASK.*|NTASKS.*|NPROCS|PROCID|LOCALID|NODEID|GTIDS|SRUN_.*|LAUNCH_.*|CPU_BIND.*|MEM_BIND.*|"
    "DISTRIBUTION|PRIO_PROCESS|UMASK|TOPOLOGY_.*|CPUS_ON_NODE|CPUS_PER_TASK)|SRUN_.*|PMI_.*|PMI2_.*|PMIX_.*"
)


class Step:
    """One srun, an agent on each of `hosts`."""

    def __init__(self, job: str, hosts: Iterable[Host]) -> None:
        if (srun := shutil.which("srun")) is None:
            raise UsageError("srun is not on this machine", hint="run fleet where Slurm's commands are")
        self._job, self._hosts = job, {host.name: host for host in hosts}
        self._tls = make_certificate()
        self._context = tls_context(True, self._tls)
        self._changed = threading.Condition()
        self._agents: dict[str, Link] = {}
        self._channels: dict[int, Future[Link]] = {}
        self._numbers = itertools.count(1)
        self._server = socket.create_server(("", 0), backlog=len(self._hosts) * 4)
        self._errors = b""
        self._cancels: set[Cancel] = set()
        self._closed = self.signalled = False
        self._strangers = threading.Semaphore(STRANGERS)
        self._process = self._start(srun, job)
        self._ears = threading.Thread(target=self._listen, name="fleet-step", daemon=True)
        self._ears.start()
        threading.Thread(target=self._accept, name="fleet-step", daemon=True).start()

    def _start(self, srun: str, job: str) -> subprocess.Popen[bytes]:
        first, *_ = self._hosts.values()
        argv = [srun, "--jobid", job, "--overlap", "--nodes", str(len(self._hosts)), "--ntasks-per-node", "1"]
        argv += ["--nodelist", ",".join(self._hosts), "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none"]
        argv += ["--mpi=none", "--chdir=/", "--output=none", "--quiet", "--job-name=fleet"]
        spec = {
            "head": self._addresses(),
            "tls": self._tls,
            "step": secrets.token_hex(8),
            "scope": f"slurm:{job}",
            "name": "SLURMD_NODENAME",
            "unset": OF_TASKS,
        }
        program = packed("relay.agent", spec)
        process = subprocess.Popen(
            [*argv, "sh", "-c", bootstrap(first)],
            env=own_environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(program)
            process.stdin.flush()
        return process

    def _addresses(self) -> list[tuple[str, int]]:
        """Where agents find this process: by the ways that lead to them."""
        port, found = self._server.getsockname()[1], dict[str, None]()
        for host in self._hosts.values():
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host.address, 9))
                found[probe.getsockname()[0]] = None
        return [(address, port) for address in found]

    def _listen(self) -> None:
        """What srun says, and its end."""
        assert self._process.stderr
        with self._process.stderr as lines:
            for line in lines:
                self._errors = (self._errors + line)[-4096:]
        self._process.wait()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                self._strangers.acquire()
                plain, _ = self._server.accept()
                threading.Thread(target=self._welcome, args=(plain,), daemon=True).start()

    def _welcome(self, plain: socket.socket) -> None:
        """Who dials, and holds the certificate, is an agent of this step."""
        link = None
        try:
            link = Link(plain, self._context, True, self._tls)
            said = link.read_line(LINE_BYTES)
            link.sock.settimeout(None)
            if "signal" in said:
                link.sock.close()
                if int(said["signal"]) in ENDS:
                    self._stop()
                return
            if "channel" in said:
                self._channels.pop(int(said["channel"])).set_result(link)
                return
            with self._changed:
                if self._closed:
                    raise OSError
                before = self._agents.get(str(said["host"]))
                self._agents[str(said["host"])] = link
                self._changed.notify_all()
            if before is not None:
                before.sock.close()
        except (OSError, *NONSENSE):
            plain.close()
            if link is not None:
                link.sock.close()
        finally:
            self._strangers.release()

    def _stop(self) -> None:
        """Slurm ends the job: its time is over, it was cancelled or preempted."""
        self.signalled = True
        for cancel in list(self._cancels):
            cancel.set(asked=False)

    def agent(self, host: Host, seconds: float, cancel: Cancel) -> Link:
        """The host's, once it is there. cancel: is set where Slurm ends the job. ConnectError."""
        self._cancels.add(cancel)
        cancel.within = min(cancel.within, WITHIN_SECONDS)
        return self._there(host, seconds, cancel)

    def _there(self, host: Host, seconds: float, cancel: Cancel) -> Link:
        until = time.monotonic() + seconds
        with self._changed:
            while (link := self._agents.get(host.name)) is None:
                if self._process.poll() is not None:
                    break
                if time.monotonic() >= until or cancel.is_set():
                    raise ConnectError(
                        f"no agent of Slurm's step within {seconds:g} s",
                        kind="timeout",
                        host=host.name,
                        hint="is the node up, and does its network lead here? sinfo -R says what Slurm knows; "
                        f"scancel {self._job} ends the job",
                    )
                self._changed.wait(SLICE_SECONDS)
        if link is None:
            raise self._refused(host)
        return link

    def _refused(self, host: Host) -> ConnectError:
        """In Slurm's own words."""
        self._ears.join(END_SECONDS)
        lines = [line for line in self._errors.decode("utf-8", "replace").splitlines() if line.strip()]
        said = re.sub("^srun: (error: )?", "", lines[0]) if lines else f"exit status {self._process.returncode}"
        return ConnectError(
            f"srun: {said}", kind="refused", host=host.name, hint="is the allocation still there? squeue --me"
        )

    def start(self, host: Host, command: str, seconds: float) -> RelayChannel:
        """A command on a host. ConnectError(kind="lost") where its agent is gone."""
        link, number = self._there(host, seconds, Cancel()), next(self._numbers)
        dialled = self._channels[number] = Future()
        try:
            with self._changed:
                link.send_line({"start": number, "command": command})
            return RelayChannel(dialled.result(seconds), host)
        except (OSError, TimeoutError) as error:
            self._channels.pop(number, None)
            with self._changed:
                if self._agents.get(host.name) is link:
                    del self._agents[host.name]
            shut(link.sock)
            raise ConnectError("the connection was lost", kind="lost", host=host.name) from error

    def close(self) -> None:
        """End the step, and all that was started in it."""
        with self._changed:
            self._closed = True
            for link in self._agents.values():
                with contextlib.suppress(OSError):
                    link.send_line({"end": True})
                link.sock.close()
            self._agents.clear()
        self._server.close()
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        for end in (self._process.poll, self._process.terminate, self._process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
                return


class SrunSession:
    """A host of the step. address: where its agent dialled from."""

    def __init__(self, step: Step, host: Host, link: Link, seconds: float) -> None:
        self.host, self._step, self._seconds = host, step, seconds
        self.address: str | None = link.sock.getpeername()[0]
        self._channels: list[RelayChannel] = []

    def start(self, command: str) -> RelayChannel:
        channel = self._step.start(self.host, command, self._seconds)
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


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
