"""One step of Slurm, with an agent on each node, which starts what fleet asks for.

srun takes its options from SLURM_* too, and a batch script's environment is full of them: it is given none.

What it writes to its tasks goes to all of them. So what it reads from them identifies them. An agent prints the digest
of a token that it has drawn, and srun shows which task has (`--label`). Tasks are in the order of `--nodelist`
(`--distribution=arbitrary`). A dialler that gives a host's name shows the token of that host, or is refused.
"""

from __future__ import annotations

import contextlib
import hmac
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
from concurrent.futures import Future, wait
from functools import partial

from fleet.background import background
from fleet.errors import ConnectError, UsageError
from fleet.model import Host
from fleet.node.delivery.chain.link import NONSENSE, Link, shut, tls_context
from fleet.node.relay.agent import PRINTED, digest_of
from fleet.transport.base import Cancel
from fleet.transport.certificate import make_certificate
from fleet.transport.local import Helper, end, has_ended
from fleet.transport.program import bootstrap, packed
from fleet.transport.relay import RelayChannel
from fleet.transport.slurm import WITHIN_SECONDS, own_environment

LINE_BYTES = 1 << 16
SLICE_SECONDS = 0.1
STRANGERS = 64  # who dial at once, each with a handshake's time
END_SECONDS = 5.0
PROOF = re.compile(b" *([0-9]{1,9}): %s\n" % PRINTED.replace("%s", "([0-9a-f]{64})").encode())
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# a step's variables about its own tasks: a library that reads it takes itself for one of them
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
        own, agents = make_certificate(), make_certificate()
        self._tls, self._theirs = own | {"peer": agents["cert"]}, agents | {"peer": own["cert"]}
        self._context = tls_context(True, self._tls)
        self._changed = threading.Condition()
        self._agents: dict[str, Link] = {}
        self._digests: dict[str, str] = {}  # host -> its token's
        self._impostor = ""  # the last one
        self._channels: dict[tuple[str, int], Future[Link]] = {}
        self._numbers = itertools.count(1)
        self._server = socket.create_server(("", 0), backlog=len(self._hosts) * 4)
        self._cancels: set[Cancel] = set()
        self._closed = self.signalled = False
        self._strangers = threading.Semaphore(STRANGERS)
        self._srun = self._start(srun, job)
        for work in (self._learn, self._accept):
            background("fleet-step", work)

    def _start(self, srun: str, job: str) -> Helper:
        first, *_ = self._hosts.values()
        argv = [srun, "--jobid", job, "--overlap", "--nodes", str(len(self._hosts)), "--ntasks-per-node", "1"]
        argv += ["--nodelist", ",".join(self._hosts), "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none"]
        argv += ["--mpi=none", "--chdir=/", "--quiet", "--job-name=fleet", "--label", "--distribution=arbitrary"]
        spec = {
            "head": self._addresses(),
            "tls": self._theirs,
            "step": secrets.token_hex(8),
            "scope": f"slurm:{job}",
            "name": "SLURMD_NODENAME",
            "unset": OF_TASKS,
        }
        argv += ["sh", "-c", bootstrap(first)]
        helper = Helper(argv, "fleet-step", pipes=subprocess.PIPE, env=own_environment(os.environ))
        assert helper.process.stdin
        with contextlib.suppress(BrokenPipeError):
            helper.process.stdin.write(packed("relay.agent", spec))
            helper.process.stdin.flush()
        return helper

    def _addresses(self) -> list[tuple[str, int]]:
        """Returns the addresses at which agents dial this process: one for each route to a host."""
        port, found = self._server.getsockname()[1], dict[str, None]()
        for host in self._hosts.values():
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host.address, 9))
                found[probe.getsockname()[0]] = None
        return [(address, port) for address in found]

    def _learn(self) -> None:
        """Reads from srun which host's task printed which digest. The first of a task is its agent's: no process was
        started there before."""
        assert self._srun.process.stdout
        names = dict(enumerate(self._hosts))
        with self._srun.process.stdout as lines:
            for line in lines:
                if (proof := PROOF.fullmatch(line)) and int(proof[1]) in names:
                    with self._changed:
                        self._digests.setdefault(names[int(proof[1])], proof[2].decode())
                        self._changed.notify_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                self._strangers.acquire()
                plain, _ = self._server.accept()
                background("fleet-step", partial(self._welcome, plain))

    def _welcome(self, plain: socket.socket) -> None:
        """Takes one connection in. The certificate proves that it is of this step, the token of which host's agent."""
        link = None
        try:
            link = Link(plain, self._context, True, self._tls)
            message = link.read_line(LINE_BYTES)
            host = self._proven(str(message["host"]), str(message["token"]), link)
            link.sock.settimeout(None)
            if "signal" in message:
                link.sock.close()
                if int(message["signal"]) in ENDS:
                    self._stop()
                return
            if "channel" in message:
                self._channels.pop((host, int(message["channel"]))).set_result(link)
                return
            with self._changed:
                if self._closed:
                    raise OSError
                before = self._agents.get(host)
                self._agents[host] = link
                self._changed.notify_all()
            if before is not None:
                before.sock.close()
        except (OSError, *NONSENSE):
            plain.close()
            if link is not None:
                link.sock.close()
        finally:
            self._strangers.release()

    def _proven(self, host: str, token: str, link: Link) -> str:
        """The name of the host whose agent has this token; srun may bring its digest a little later."""
        name = self._hosts[host].name
        with self._changed:
            self._changed.wait_for(lambda: name in self._digests, END_SECONDS)
            if not hmac.compare_digest(self._digests.get(name, ""), digest_of(token)):
                self._impostor = f"; {link.sock.getpeername()[0]} said that it is {name}, without its token"
                raise PermissionError(name)
        return name

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
                if has_ended(self._srun.process):
                    break
                if time.monotonic() >= until or cancel.is_set():
                    raise ConnectError(
                        f"no agent of Slurm's step within {seconds:g} s{self._impostor}",
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
        """With Slurm's own message."""
        wait([self._srun.reader], END_SECONDS)
        lines = [line for line in self._srun.said.splitlines() if line.strip()]
        output = (
            re.sub("^(srun: (error: )?| *[0-9]+: )", "", lines[0])
            if lines
            else f"exit status {self._srun.process.returncode}"
        )
        return ConnectError(
            f"srun: {output}", kind="refused", host=host.name, hint="is the allocation still there? squeue --me"
        )

    def start(self, host: Host, command: str, seconds: float) -> RelayChannel:
        """A command on a host. ConnectError(kind="lost") where its agent is gone."""
        link, number = self._there(host, seconds, Cancel()), next(self._numbers)
        dialled = self._channels[host.name, number] = Future()
        try:
            with self._changed:
                link.send_line({"start": number, "command": command})
            return RelayChannel(dialled.result(seconds), host)
        except (OSError, TimeoutError) as error:
            self._channels.pop((host.name, number), None)
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
        assert self._srun.process.stdin
        with contextlib.suppress(OSError):
            self._srun.process.stdin.close()
        end(self._srun.process, END_SECONDS, END_SECONDS)
