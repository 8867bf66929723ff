"""Runs one step of Slurm with an agent on each node, which starts the processes that fleet requests.

srun also reads options from variables SLURM_*. A batch script's environment has many of them, so srun gets none.

srun sends its stdin to all tasks, so only their output can identify them. An agent prints the digest of a random token.
srun labels the line with the task (`--label`), and tasks are in the order of `--nodelist` (`--distribution=arbitrary`).
A connection that claims to be a host's must show the token of that host, or it is refused.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial

from fleet.background import background
from fleet.errors import ConnectError, UsageError
from fleet.model import Host
from fleet.node.delivery.chain.link import NONSENSE, Link, shut, tls_context
from fleet.node.relay.agent import PRINTED, digest_of
from fleet.transport.base import Cancel
from fleet.transport.certificate import make_certificate
from fleet.transport.local import ChildProcess, end, has_ended
from fleet.transport.program import bootstrap, packed
from fleet.transport.relay import RelayChannel
from fleet.transport.slurm import NOT_YET, WITHIN_SECONDS, own_environment, route_to

LINE_BYTES = 1 << 16
SLICE_SECONDS = 0.1
STRANGERS = 64  # most connections at once that have not proved who they are
END_SECONDS = 5.0
PROOF = re.compile(b" *([0-9]{1,9}): %s\n" % PRINTED.replace("%s", "([0-9a-f]{64})").encode())
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Variables that srun sets for its own tasks. A library that reads them would believe that its process is such a task.
OF_TASKS = (
    "SLURM_(STEP.*|TASK.*|NTASKS.*|NPROCS|PROCID|LOCALID|NODEID|GTIDS|SRUN_.*|LAUNCH_.*|CPU_BIND.*|MEM_BIND.*|"
    "DISTRIBUTION|PRIO_PROCESS|UMASK|TOPOLOGY_.*|CPUS_ON_NODE|CPUS_PER_TASK)|SRUN_.*|PMI_.*|PMI2_.*|PMIX_.*"
)
BY_PYXIS = "|RANK|LOCAL_RANK"  # pyxis, Slurm's container plugin, sets them for images of PyTorch
OF_PYXIS = re.compile("^.*error: (pyxis: .*)", re.MULTILINE)


class Step:
    """Controls one srun, with an agent on each of `hosts`. job: the allocation's number. container: the options by
    which srun starts a container. signalled: Slurm is ending the job."""

    def __init__(self, job: str, hosts: Iterable[Host], container: Sequence[str] = ()) -> None:
        if (srun := shutil.which("srun")) is None:
            raise UsageError("srun is not on this machine", hint="run fleet where Slurm's commands are")
        self.job, self._hosts, self._container = job, {host.name: host for host in hosts}, container
        own, agents = make_certificate(), make_certificate()
        self._tls, self._theirs = own | {"peer": agents["cert"]}, agents | {"peer": own["cert"]}
        self._context = tls_context(True, self._tls)
        self._changed = threading.Condition()
        self._agents: dict[str, Link] = {}
        self._digests: dict[str, str] = {}  # host -> digest of its token
        self._impostor = ""  # message about the last connection with a wrong token
        self._channels: dict[tuple[str, int], Future[Link]] = {}
        self._numbers = itertools.count(1)
        self._server = socket.create_server(("", 0), backlog=len(self._hosts) * 4)
        self._cancels: set[Cancel] = set()
        self._closed = self.signalled = False
        self._strangers = threading.Semaphore(STRANGERS)
        self._srun = self._start(srun)
        for work in (self._learn, self._accept):
            background("fleet-step", work)

    def _start(self, srun: str) -> ChildProcess:
        first, *_ = self._hosts.values()
        argv = [srun, "--jobid", self.job, "--overlap", "--nodes", str(len(self._hosts)), "--ntasks-per-node", "1"]
        argv += ["--nodelist", ",".join(self._hosts), "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none"]
        argv += ["--mpi=none", "--chdir=/", "--quiet", "--job-name=fleet", "--label", "--distribution=arbitrary"]
        spec = {
            "head": self._addresses(),
            "tls": self._theirs,
            "step": secrets.token_hex(8),
            "scope": f"slurm:{self.job}",
            "name": "SLURMD_NODENAME",
            "unset": OF_TASKS + BY_PYXIS * bool(self._container),
        }
        argv += [*self._container, "sh", "-c", bootstrap(first)]
        child = ChildProcess(argv, "fleet-step", pipes=subprocess.PIPE, env=own_environment(os.environ))
        assert child.process.stdin
        with contextlib.suppress(BrokenPipeError):
            child.process.stdin.write(packed("relay.agent", spec))
            child.process.stdin.flush()
        return child

    def _addresses(self) -> list[tuple[str, int]]:
        """Returns the addresses at which agents connect to this process: one for each route to a host."""
        port, found = self._server.getsockname()[1], [route_to(host.address) for host in self._hosts.values()]
        return [(address, port) for address in dict.fromkeys(found) if address is not None]

    def _learn(self) -> None:
        """Reads the digest of each host's task from srun's output. The first digest of a task is its agent's, because
        no other process runs in the task yet."""
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
        """Accepts one connection. Its certificate proves that it belongs to this step, its token proves the host."""
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
        """Returns the host's name if the token is its agent's. Waits a little, as srun may print the digest later."""
        name = self._hosts[host].name
        with self._changed:
            self._changed.wait_for(lambda: name in self._digests, END_SECONDS)
            if not hmac.compare_digest(self._digests.get(name, ""), digest_of(token)):
                self._impostor = f"; {link.sock.getpeername()[0]} claimed to be {name}, without its token"
                raise PermissionError(name)
        return name

    def _stop(self) -> None:
        """Sets the latches, because Slurm ends the job: it timed out, was cancelled or preempted."""
        self.signalled = True
        for cancel in list(self._cancels):
            cancel.set(asked=False)

    def agent(self, host: Host, seconds: float, cancel: Cancel) -> Link:
        """Waits up to `seconds` for the host's agent, and returns its connection. cancel: a latch to set if Slurm ends
        the job. Raises ConnectError."""
        self._cancels.add(cancel)
        cancel.within = min(cancel.within, WITHIN_SECONDS)
        return self._there(host, seconds, cancel)

    def _there(self, host: Host, seconds: float, cancel: Cancel) -> Link:
        until = time.monotonic() + seconds
        with self._changed:
            while (link := self._agents.get(host.name)) is None:
                # if pyxis cannot start the container of one node, srun still runs those of the other nodes
                if has_ended(self._srun.process) or self._container and OF_PYXIS.search(self._srun.stderr):
                    break
                if time.monotonic() >= until or cancel.is_set():
                    raise ConnectError(
                        f"no agent of Slurm's step within {seconds:g} s{self._impostor}",
                        kind="timeout",
                        host=host.name,
                        hint="is the node up, and does its network lead here? sinfo -R says what Slurm knows; "
                        f"scancel {self.job} ends the job",
                    )
                self._changed.wait(SLICE_SECONDS)
        if link is None:
            raise self._refused(host)
        return link

    @property
    def unanswered(self) -> bool:
        """Returns whether srun ended and started nothing because slurmctld, Slurm's controller, did not answer or was
        not ready yet."""
        lines = self._srun.stderr.splitlines() if has_ended(self._srun.process) and not self._digests else ()
        return any(line.startswith("srun:") and NOT_YET.search(line) for line in lines)

    def _refused(self, host: Host) -> ConnectError:
        """Returns the error with Slurm's own message."""
        wait([self._srun.reader], END_SECONDS)
        lines = [line for line in self._srun.stderr.splitlines() if line.strip()]
        output = (
            re.sub(r"^((\S*/)?srun: (error: )?| *[0-9]+: )", "", lines[0])
            if lines
            else f"exit status {self._srun.process.returncode}"
        )
        hint = "is the allocation still there? squeue --me"
        if self._container and (why := OF_PYXIS.search(self._srun.stderr)):
            output, hint = why[1], shlex.join(["srun", "--jobid", self.job, "--overlap", *self._container, "true"])
        elif self._container and output.startswith("unrecognized option"):
            hint = "this Slurm has no pyxis, or another one: srun --help | grep -A 2 container"
        return ConnectError(f"srun: {output}", kind="refused", host=host.name, hint=hint)

    def pass_on(self, signum: int) -> None:
        """Sends a signal to the ranks of all nodes."""
        with self._changed:
            for link in self._agents.values():
                with contextlib.suppress(OSError):
                    link.send_line({"signal": signum})

    def start(self, host: Host, command: str, seconds: float) -> RelayChannel:
        """Starts a command on a host. Raises ConnectError(kind="lost") if its agent is gone."""
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
        """Ends the step and all its processes."""
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
