"""Starting host.py's program and hearing from the machines it makes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from fleet.errors import LabError
from fleet.lab.processes import MARK

ROOT = Path(__file__).parents[2]
# Without site-packages: the interpreter that every host shares stays small.
PROGRAM = "import sys; sys.path.append(sys.argv[1]); from fleet.lab.host import main; main()"
PRIVILEGES = "the lab needs real root: in a container, one started with --privileged"


class Launch:
    """A running host program: `pids()`, plug the cables in, `go()`. Leaving before that ends the hosts."""

    def __init__(self, spec: dict[str, Any], state_dir: Path, within: float) -> None:
        self._deadline = time.monotonic() + within
        self._names = [host["name"] for host in spec["hosts"]]
        self._all = self._names + (["switch"] if spec["switch"] else [])
        self._log = state_dir / "launch.log"
        self._go_read, self._go = os.pipe()
        environment = {MARK: str(state_dir), "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM, str(ROOT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd="/",
                pass_fds=(self._go_read,),
                start_new_session=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._out = self._process.stdout
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps({**spec, "go_fd": self._go_read}).encode())
        os.close(self._go_read)

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            os.close(self._go)
        self._out.close()
        self._process.kill()
        self._process.wait()

    def pids(self) -> dict[str, int]:
        """Each machine's first process, as this machine sees it."""
        found: dict[str, int] = {}
        for message in self._messages(lambda: len(found) == len(self._all), "made"):
            found[message["name"]] = message["pid"]
        return found

    def go(self) -> None:
        """The cables are in: build the hosts; return when every sshd listens."""
        os.write(self._go, b"1" * len(self._all))
        ready: set[str] = set()
        for message in self._messages(lambda: len(ready) == len(self._names), "started"):
            ready.add(message["name"])

    def _messages(self, enough: Any, what: str) -> Iterator[dict[str, Any]]:
        pending = b""
        while not enough():
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                raise LabError(f"not all hosts were {what} in time", hint="fewer hosts, or an idle machine")
            chunk = os.read(self._out.fileno(), 65536)
            if not chunk:
                said = self._log.read_text(errors="replace").strip().splitlines()
                raise LabError(f"a host ended while it was {what}: {said[-1] if said else 'no reason given'}")
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "error" in message:
                    refused = "not permitted" in message["error"] or "denied" in message["error"]
                    raise LabError(
                        f"cannot start it: {message['error']}",
                        host=message["name"],
                        hint=PRIVILEGES if refused else "`dmesg | tail` may say more",
                    )
                yield message
