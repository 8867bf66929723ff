"""The local transport, but that node programs begin as forks of one python (forker.py): dozens a second, and each may
be killed at a moment of choice, or see another clock. All else is started as ever."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from fleet.model import Host
from fleet.transport.base import Cancel
from fleet.transport.local import LocalSession, LocalTransport, ProcessChannel
from fleet.transport.program import BOOT, bootstrap
from fleet.transport.streams import Streams

Faults = Mapping[str, Any]


class Forker:
    """One for all conversations of this process. modules: what programs of the head import, none for those of nodes."""

    def __init__(self, *modules: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        python: str = getattr(sys, "_base_executable", None) or sys.executable
        self._process = subprocess.Popen(
            [
                python,
                "-I",
                "-S",
                str(Path(__file__).with_name("forker.py")),
                *([":".join(sys.path)] if modules else []),
                *modules,
            ],
            stdin=theirs.fileno(),
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        theirs.close()
        self._socket, self._lock, self._changed = ours, threading.Lock(), threading.Condition()
        self._begun: list[int] = []
        self.ended: dict[int, int] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                said = json.loads(line)
                with self._changed:
                    if "begun" in said:
                        self._begun.append(said["begun"])
                    else:
                        self.ended[said["ended"]] = said["status"]
                    self._changed.notify_all()

    def start(self, asked: Faults, fds: list[int]) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(dict(asked)).encode()], fds)
            with self._changed:
                assert self._changed.wait_for(lambda: self._begun, 60.0), "the forker does not answer"
                return self._begun.pop()

    def run(self, asked: Faults, said: bytes, seconds: float) -> tuple[int | None, bytes, bytes]:
        """A program to its end: how that was, and its outputs. None: it took too long, and was killed."""
        forked = Forked(self, asked)
        with forked.stdin, forked.stdout, forked.stderr:
            forked.stdin.write(said)
            forked.stdin.close()
            timer = threading.Timer(seconds, forked.send_signal, (signal.SIGKILL,))
            timer.start()
            out, err = forked.stdout.read(), forked.stderr.read()
            timer.cancel()
        return self.wait(forked.pid, 60.0), out, err

    def wait(self, pid: int, timeout: float | None) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: pid in self.ended, timeout)
            return self.ended.get(pid)

    @cached_property
    def heads(self) -> Forker:
        """Starts what the head does in a process of its own."""
        return Forker("tests.fuzz.head")

    def close(self) -> None:
        if "heads" in self.__dict__:
            self.heads.close()
        self._socket.close()
        self._process.wait(60)
        self._listener.join(60)


class Forked:
    """As much of a subprocess.Popen as ProcessChannel asks for."""

    def __init__(self, forker: Forker, asked: Faults) -> None:
        self._forker, self.returncode = forker, 0
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        self.pid = forker.start(asked, theirs)
        for fd in theirs:
            os.close(fd)
        self.stdin = os.fdopen(pipes[0][1], "wb", 0)
        self.stdout, self.stderr = os.fdopen(pipes[1][0], "rb", 0), os.fdopen(pipes[2][0], "rb", 0)

    def poll(self) -> int | None:
        return self._forker.ended.get(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        status = self._forker.wait(self.pid, timeout)
        if status is None:
            raise subprocess.TimeoutExpired("node program", timeout or 0.0)
        return status

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)


class ForkedChannel(ProcessChannel):
    """cut: bytes of ours after which the head is gone, as the node sees it. late: seconds after which the program is
    killed."""

    def __init__(self, forker: Forker, host: Host, faults: Faults, home: Path) -> None:
        Streams.__init__(self, host)
        self._patience = 2.0
        self._process: Any = Forked(forker, {"boot": BOOT, **faults, "home": str(home)})
        self._stdin, self._outputs = self._process.stdin, (self._process.stdout, self._process.stderr)
        os.set_blocking(self._stdin.fileno(), False)
        self._open = {pipe.fileno(): number for number, pipe in enumerate(self._outputs)}
        self._left = faults.get("cut")
        if "late" in faults:
            timer = threading.Timer(faults["late"], self._process.send_signal, (signal.SIGKILL,))
            timer.daemon = True
            timer.start()

    def _write(self, data: memoryview) -> int:
        if self._left is not None:
            if self._left <= 0:
                with contextlib.suppress(OSError):
                    self._stdin.close()
                raise self._lost()
            data = data[: self._left]
        count = super()._write(data)
        if self._left is not None:
            self._left -= count
        return count


class ForkedSession(LocalSession):
    def __init__(self, host: Host, transport: ForkedTransport) -> None:
        super().__init__(host)
        self._transport = transport

    def start(self, command: str) -> ProcessChannel:
        if command != bootstrap(self.host):
            return super().start(command)
        transport = self._transport
        faults = transport.faults.get(self.host.name, {})
        channel = ForkedChannel(transport.forker, self.host, faults, transport.homes[self.host.name])
        self._channels.append(channel)
        return channel


class ForkedTransport(LocalTransport):
    """homes: of each host's user there. faults: what befalls each host's programs, see forker.py and ForkedChannel."""

    name = "forked"

    def __init__(self, forker: Forker, homes: Mapping[str, Path], faults: Mapping[str, Faults] | None = None) -> None:
        self.forker, self.homes, self.faults = forker, homes, faults or {}

    def connect(self, host: Host, cancel: Cancel) -> Any:
        return ForkedSession(host, self)
