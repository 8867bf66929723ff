"""Checks if a lab can run on this machine, starts host.py's program and receives its reports. Finds, stops and ends the
lab's processes by a mark in their environment, never by a name."""

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet.errors import LabError
from fleet.node.base.processes import end_all, pids, start_time, state_of, with_env

TOOLS = {"ip": "iproute2", "nsenter": "util-linux", "chpasswd": "passwd", "sshd": "openssh-server"}
SHAPING = {"tc": "iproute2"}
SLURM = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm", "munged": "munge"}


def which(tool: str) -> str | None:
    """Returns a tool's path; a user's PATH often lacks the sbin folders."""
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin:/usr/local/sbin")


def require(shaped: bool = False, slurm: bool = False) -> None:
    """Raises LabError if this machine lacks what a lab needs. shaped: links are limited. slurm: the hosts run Slurm."""
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
    """Is true if the process with this pid and start time lives. The pid alone may belong to a later process."""
    return pid is not None and started is not None and start_time(pid) == started


def marked(state_dir: Path) -> dict[int, int]:
    """Returns pid -> start time of the lab's switch and of the hosts' first processes, without zombies."""
    return with_env(MARK, str(state_dir))


def namespace(pid: int) -> str | None:
    """Returns the pid namespace of a process, None if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def inside(init: int) -> list[int]:
    """Returns all processes in the pid namespace of `init`, with itself."""
    own = namespace(init)
    return [pid for pid in pids() if own is not None and namespace(pid) == own]


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_all(find: Callable[[], dict[int, int]], within: float = 20.0) -> None:
    """Kills the processes that `find` returns, pid -> start time, until it returns none. Raises LabError if one is left
    after `within` seconds."""
    ended: set[int] = set()

    def found() -> dict[int, int]:
        left = find()
        ended.update(left)
        return left

    if left := end_all(found, 0.0, within):
        raise LabError(f"cannot end process {min(left)}", hint="it may hang in the kernel; see `dmesg`")
    # this machine's init reaps them soon, and their namespaces end; in some containers it never does
    deadline = time.monotonic() + 2
    while any(map(state_of, ended)) and time.monotonic() < deadline:
        time.sleep(0.01)


def freeze(init: int, within: float = 10.0) -> None:
    """Stops every process of the host, until none runs. The kernel still answers TCP for it."""
    deadline = time.monotonic() + within
    waiting: set[int] = set()  # processes in the kernel, which stop when they leave it
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
# without site-packages, the interpreter that all hosts share stays small
PROGRAM = "import sys; sys.path.append(sys.argv[1]); from fleet.lab.host import main; main()"
PRIVILEGES = "the lab needs real root: in a container, one started with --privileged"


class Launch:
    """Controls a running host program: pids(), then the cables, then go(). Leaving it earlier ends the hosts. within:
    the longest time in seconds without a report."""

    def __init__(self, spec: dict[str, Any], state_dir: Path, within: float) -> None:
        self._hosts = len(spec["hosts"])
        self._machines = self._hosts + spec["switch"]
        self._log = state_dir / "launch.log"
        self._reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reports.settimeout(within)
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
        self._send(json.dumps(spec).encode() + b"\n")

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        self._reports.close()
        self._process.kill()
        self._process.communicate()

    def pids(self) -> dict[str, int]:
        """Returns the pid of each machine's first process."""
        messages = [self._next("made") for _ in range(self._machines)]
        return {message["name"]: message["pid"] for message in messages}

    def go(self) -> None:
        """Builds the hosts, after the cables are plugged in. Returns when every sshd listens."""
        self._send(b"1" * self._machines)
        for _ in range(self._hosts):
            self._next("started")

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its log shows why it has ended
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _next(self, what: str) -> dict[str, Any]:
        """Returns the next message. Raises LabError for an error, or if none comes."""
        try:
            received = self._reports.recv(1 << 16)
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
