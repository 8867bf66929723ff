"""Decides if a lab can run on this machine, and handles its processes: it starts host.py's program and receives the
reports of the machines that this makes. All of them are found, stopped and ended by a mark in their environment, never
by a name."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fleet.errors import LabError
from fleet.node.base.processes import pids, start_time, state_of, with_env

TOOLS = {"ip": "iproute2", "nsenter": "util-linux", "chpasswd": "passwd", "sshd": "openssh-server"}
SHAPING = {"tc": "iproute2"}
SLURM = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm", "munged": "munge"}


def which(tool: str) -> str | None:
    """Returns a tool's path; a user's PATH often lacks the sbin folders."""
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin:/usr/local/sbin")


def require(shaped: bool = False, slurm: bool = False) -> None:
    """LabError, with what is needed, when there can be no lab here. shaped: links are to be limited. slurm: with its
    daemons."""
    if not sys.platform.startswith("linux"):
        raise LabError(f"the lab is made of Linux namespaces; this is {sys.platform}", hint="use a Linux machine")
    needed = {**TOOLS, **(SHAPING if shaped else {}), **(SLURM if slurm else {})}
    missing = [tool for tool in needed if which(tool) is None]
    if missing:
        packages = " ".join(sorted({needed[tool] for tool in missing}))
        raise LabError(f"the lab needs {', '.join(missing)}, not found here", hint=f"apt install {packages}")
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it makes namespaces and mounts", hint="run it as root, or with sudo -H")


MARK = "FLEET_LAB_STATE"  # set for the lab's own processes only, never by a user


def is_alive(pid: int | None, started: int | None) -> bool:
    """Is true where that very process lives: a pid alone may belong to another one by now."""
    return pid is not None and started is not None and start_time(pid) == started


def marked(state_dir: Path) -> list[int]:
    """The lab's switch and first processes (zombies excepted), whatever became of their parents."""
    return list(with_env(MARK, str(state_dir)))


def namespace(pid: int) -> str | None:
    """Returns the pid namespace it lives in; None when it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def inside(init: int) -> list[int]:
    """Every process in the pid namespace of `init`, itself included."""
    own = namespace(init)
    return [pid for pid in pids() if own is not None and namespace(pid) == own]


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end_all(find: Callable[[], Iterable[int]], within: float = 20.0) -> None:
    """SIGKILL what `find` returns, until it returns nothing. LabError when something outlives `within` seconds."""
    deadline = time.monotonic() + within
    ended: set[int] = set()
    while left := list(find()):
        if time.monotonic() > deadline:
            raise LabError(f"cannot end process {left[0]}", hint="it may hang in the kernel; see `dmesg`")
        for pid in left:
            send(pid, signal.SIGKILL)
        ended.update(left)
        time.sleep(0.01)
    # this machine's init collects them any moment now, and their namespaces go; in some containers it never does
    deadline = time.monotonic() + 2
    while any(map(state_of, ended)) and time.monotonic() < deadline:
        time.sleep(0.01)


def freeze(init: int, within: float = 10.0) -> None:
    """Stop every process of the host, until none is left that runs; the kernel still answers TCP for it."""
    deadline = time.monotonic() + within
    waiting: set[int] = set()  # in the kernel; they stop when they come back
    while running := [pid for pid in inside(init) if state_of(pid) not in ("T", "Z", "X", "") and pid not in waiting]:
        for pid in running:
            send(pid, signal.SIGSTOP)
        waiting.update(pid for pid in running if state_of(pid) == "D")
        if time.monotonic() > deadline:
            raise LabError(f"cannot stop process {running[0]}")


def thaw(init: int) -> None:
    for pid in inside(init):
        send(pid, signal.SIGCONT)


ROOT = Path(__file__).parents[2]
# Without site-packages: the interpreter that every host shares stays small.
PROGRAM = "import sys; sys.path.append(sys.argv[1]); from fleet.lab.host import main; main()"
PRIVILEGES = "the lab needs real root: in a container, one started with --privileged"


class Launch:
    """A running host program: `pids()`, plug the cables in, `go()`. Leaving before that ends the hosts. within: the
    longest time in seconds that all of them may be silent."""

    def __init__(self, spec: dict[str, Any], state_dir: Path, within: float) -> None:
        self._hosts = len(spec["hosts"])
        self._machines = self._hosts + spec["switch"]
        self._log = state_dir / "launch.log"
        self._said, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said.settimeout(within)
        environment = {MARK: str(state_dir), "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"}
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM, str(ROOT)],  # noqa: TID251
                stdin=subprocess.PIPE,
                stdout=theirs.fileno(),
                stderr=log,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        self._tell(json.dumps(spec).encode() + b"\n")

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        self._said.close()
        self._process.kill()
        self._process.communicate()

    def pids(self) -> dict[str, int]:
        """Each machine's first process, as this machine sees it."""
        messages = [self._next("made") for _ in range(self._machines)]
        return {message["name"]: message["pid"] for message in messages}

    def go(self) -> None:
        """The cables are in: build the hosts; return when every sshd listens."""
        self._tell(b"1" * self._machines)
        for _ in range(self._hosts):
            self._next("started")

    def _tell(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # why it has ended is in its log
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _next(self, what: str) -> dict[str, Any]:
        """The next message. LabError where it is an error, or none comes."""
        try:
            received = self._said.recv(1 << 16)
        except TimeoutError:
            raise LabError(f"not all hosts were {what} in time", hint="fewer hosts, or an idle machine") from None
        if not received:
            log = self._log.read_text(errors="replace").strip().splitlines()
            raise LabError(f"a host ended while it was {what}: {log[-1] if log else 'no reason given'}")
        message: dict[str, Any] = json.loads(received)
        if "error" in message:
            refused = "not permitted" in message["error"] or "denied" in message["error"]
            raise LabError(
                f"cannot start it: {message['error']}",
                host=message["name"],
                hint=PRIVILEGES if refused else "`dmesg | tail` may say more",
            )
        return message
