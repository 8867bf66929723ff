"""Starting host.py's program and hearing from the machines it makes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from fleet.errors import LabError
from fleet.lab.processes import MARK

ROOT = Path(__file__).parents[2]
# Without site-packages: the interpreter that every host shares stays small.
PROGRAM = "import sys; sys.path.append(sys.argv[1]); from fleet.lab.host import main; main()"
PRIVILEGES = "the lab needs real root: in a container, one started with --privileged"


class Launch:
    """A running host program: `pids()`, plug the cables in, `go()`. Leaving before that ends the hosts. within: the
    longest time in seconds that none of them may say anything."""

    def __init__(self, spec: dict[str, Any], state_dir: Path, within: float) -> None:
        self._hosts = len(spec["hosts"])
        self._machines = self._hosts + spec["switch"]
        self._log = state_dir / "launch.log"
        self._said, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said.settimeout(within)
        environment = {MARK: str(state_dir), "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"}
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM, str(ROOT)],
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
        told = [self._next("made") for _ in range(self._machines)]
        return {message["name"]: message["pid"] for message in told}

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
            said = self._said.recv(1 << 16)
        except TimeoutError:
            raise LabError(f"not all hosts were {what} in time", hint="fewer hosts, or an idle machine") from None
        if not said:
            log = self._log.read_text(errors="replace").strip().splitlines()
            raise LabError(f"a host ended while it was {what}: {log[-1] if log else 'no reason given'}")
        message: dict[str, Any] = json.loads(said)
        if "error" in message:
            refused = "not permitted" in message["error"] or "denied" in message["error"]
            raise LabError(
                f"cannot start it: {message['error']}",
                host=message["name"],
                hint=PRIVILEGES if refused else "`dmesg | tail` may say more",
            )
        return message
