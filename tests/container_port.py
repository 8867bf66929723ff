"""The port where containers meet, in a process of its own on the oldest python at hand, and what a test does there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fleet.node.base.clock import CLOCK
from fleet.node.container.channel import Channel
from fleet.node.container.dial import Line, dial
from fleet.transport.program import closure
from tests.node.nodes import until

OLD = min(Path("/root/.pyenv/versions").glob("3.6.*/bin/python"), default=Path("/usr/bin/python3"))
SECRET = b"correct horse battery staple"
LIMIT_KIB = 50 << 10
# who says hello takes part, unless it is "stranger"; a beat is sent back, a flood is sent until it is too much
PROGRAM = """\
import json, sys
from fleet.node.base.clock import Clock
from fleet.node.container.server import Server

secret, speed = sys.argv[1].encode() or None, float(sys.argv[2])

class Fast(Clock):
    def monotonic(self):
        return Clock.monotonic(self) * speed

server = Server(0, secret, Fast())
print(json.dumps(["port", "", server.port]), flush=True)
while True:
    for kind, connection, what in server.turn(0.5):
        shown = what if len(str(what)) < 1000 else "much"
        print(json.dumps([kind, connection.address, shown]), flush=True)
        if kind == "message" and not connection.admitted:
            if what.get("host") == "stranger":
                connection.refuse("none of us", "go away")
            elif "host" in what:
                connection.admitted = True
                connection.send({"begin": 1})
        elif kind == "message" and "flood" in what:
            while not connection.gone:
                connection.send({"x": "y" * 60000})
        elif kind == "message":
            connection.send({"beat": what.get("beat")})
"""
CLIENT = """\
import sys
from fleet.node.base.clock import CLOCK
from fleet.node.container.dial import dial

line = dial("localhost", int(sys.argv[1]), sys.argv[2].encode() or None, {"host": "old"}, 20.0, print, CLOCK)
begin = line.receive(20.0)
line.send(beat=7)
print(begin, line.receive(20.0), line.receive(0.01))
line.close()
"""


def on_old_python(folder: Path, program: str, *argv: str, limits: str = "") -> subprocess.Popen[str]:
    """Starts a program with what it imports of the node half, and nothing else of fleet."""
    modules = ("fleet.node.container.server", "fleet.node.container.dial", "fleet.node.base.clock")
    for name, text in {name: text for module in modules for name, text in closure(module).items()}.items():
        file = folder.joinpath(*name.split("."))
        file = file.with_suffix(".py") if text else file / "__init__.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
    (folder / "program.py").write_text(program)
    command = ["sh", "-c", f'{limits} exec "$@"', "sh", str(OLD), "-B", str(folder / "program.py"), *argv]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, **pipe)  # type: ignore[call-overload,no-any-return]


def shortened(digits: str) -> int:
    """Returns a number of what somebody sent as far as this python reads it."""
    return int(digits[:20])


class Port:
    """secret: the server's. speed: of its clock. limits: a shell command that its process begins with. events: [kind,
    address, message or reason]."""

    def __init__(self, folder: Path, secret: bytes | None = SECRET, speed: float = 1.0, limits: str = "") -> None:
        self.secret, self.events, self.opened = secret, list[list[Any]](), list[Line | socket.socket]()
        self.process = on_old_python(folder, PROGRAM, (secret or b"").decode(), str(speed), limits=limits)
        threading.Thread(target=self._read, daemon=True).start()
        self.port = int(until(lambda: self.events)[0][2])

    def _read(self) -> None:
        assert self.process.stdout
        with contextlib.suppress(ValueError):  # it is closed by now
            self._take(self.process.stdout)

    def _take(self, said: Iterable[str]) -> None:
        for line in said:
            self.events.append(json.loads(line, parse_int=shortened) if line.startswith("[") else ["output", "", line])

    def of(self, kind: str) -> list[Any]:
        return [what for each, _, what in self.events if each == kind]

    def member(self, host: str = "a", address: str = "127.0.0.1") -> Line:
        """One that takes part. Like a container's part, it dials again if the server drops it before it is admitted."""

        def admitted() -> Line | None:
            line = dial(address, self.port, self.secret, {"host": host}, 20.0, lambda text: None, CLOCK)
            self.opened.append(line)
            with contextlib.suppress(OSError):
                assert line.receive(20.0) == {"begin": 1}
                return line
            return None

        line: Line = until(admitted, 60)
        return line

    def stranger(self, source: str = "127.0.0.1") -> socket.socket:
        """A connection that has sent nothing."""
        sock = socket.create_connection(("127.0.0.1", self.port), 20, (source, 0))
        self.opened.append(sock)
        return sock

    def insider(self) -> tuple[socket.socket, Channel]:
        """A member's connection, in the hands of somebody between it and the server."""
        sock, channel = self.stranger(), Channel(self.secret, False)
        sock.sendall(channel.opening())
        while not channel.ready:
            channel.feed(sock.recv(1 << 12))
            sock.sendall(channel.take_outgoing())
        sock.sendall(channel.pack({"host": "insider"}))
        while not channel.feed(sock.recv(1 << 12)):
            pass
        return sock, channel

    @property
    def peak(self) -> int:
        """Returns KiB of memory at the server's peak."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    @property
    def cpu(self) -> float:
        """Returns the seconds that the server has computed."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def close(self) -> None:
        for it in self.opened:
            it.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


def a_second() -> float:
    """Returns how long a second is for a process of this machine, whose processors others may use, too."""
    return max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))


class Beats:
    """A member that sends a beat every 20 ms for as long as the block lasts, ten at least: each is sent back within a
    second, and the server stays small."""

    def __init__(self, port: Port) -> None:
        self.port, self.line = port, port.member("beats")
        self.slowest, self.count, self.error = 0.0, 0, ""
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._beat)

    def _beat(self) -> None:
        try:
            while not self.over.is_set() or self.count < 10:
                began = time.monotonic()
                self.line.send(beat=self.count)
                assert self.line.receive(20.0) == {"beat": self.count}
                self.slowest, self.count = max(self.slowest, time.monotonic() - began), self.count + 1
                time.sleep(0.02)
        except Exception as error:
            self.error = repr(error)

    def __enter__(self) -> Beats:
        self.thread.start()
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.over.set()
        self.thread.join()
        if kind is None:
            assert not self.error and self.slowest < a_second(), (self.error, self.slowest, self.port.events[-3:])
            assert self.port.peak < LIMIT_KIB
            assert not self.port.of("output")
