"""Runs shipped programs as a node would: the bootstrap's python, source and JSON over stdin, frames back."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fleet
from fleet.protocol.frames import PREAMBLE
from fleet.transport.frames import HEADER, Frame
from fleet.transport.program import BOOT, packed
from tests.changed import changed

# the interpreter of the "node": FLEET_TEST_NODE_PYTHON=/path/to/python3.6 runs all of this on an old one
PYTHON = os.environ.get("FLEET_TEST_NODE_PYTHON") or shutil.which("python3", path="/usr/bin") or "python3"
LIMIT = 60.0  # seconds that a busy machine may take for anything: what must be ended sleeps longer
RANK_FILES = {
    name: (Path(fleet.__file__).parent / "node/run/rank" / name).read_text()
    for name in ("rank.py", "drain.py", "watch.py")
}


class Running:
    """A program under way, with a home folder of its own. first: text of Python that it runs before it begins: a fault
    of the machine that no test can make, as a call of the system that fails at one moment."""

    def __init__(
        self, name: str, spec: Mapping[str, Any], home: Path, env: Mapping[str, str] | None = None, first: str = ""
    ) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("FLEET_")}
        self.process = subprocess.Popen(
            [PYTHON, "-I", "-S", "-c", BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**clean, "HOME": str(home), **(env or {})},
            bufsize=0,
        )
        self.raw(changed(name, first) + json.dumps(spec).encode() + b"\n" if first else packed(name, spec))
        self.buffer = bytearray()
        self.started = False

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def raw(self, data: bytes) -> None:
        assert self.process.stdin
        view = memoryview(data)
        while view:
            view = view[os.write(self.process.stdin.fileno(), view) :]

    def send(self, message: Any) -> None:
        self.raw(json.dumps(message).encode() + b"\n")

    def frames(self, timeout: float = LIMIT) -> Iterator[Frame]:
        """Up to and including X; heartbeats are swallowed. AssertionError when it ends early, or tells nothing for so
        long."""
        assert self.process.stdout
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                if not self.started and PREAMBLE in self.buffer:
                    del self.buffer[: self.buffer.index(PREAMBLE) + len(PREAMBLE)]
                    self.started = True
                while self.started and len(self.buffer) >= HEADER.size:
                    kind, stream, length = HEADER.unpack_from(self.buffer)
                    if len(self.buffer) < HEADER.size + length:
                        break
                    payload = bytes(self.buffer[HEADER.size : HEADER.size + length])
                    del self.buffer[: HEADER.size + length]
                    frame = Frame(kind, stream, payload)
                    if frame.kind != b"H":
                        yield frame
                        deadline = time.monotonic() + timeout
                    if frame.kind == b"X":
                        return
                assert time.monotonic() < deadline, "no end within the time"
                if selector.select(0.1):
                    data = os.read(self.process.stdout.fileno(), 1 << 18)
                    assert data, f"ended early: {self.errors()}"
                    self.buffer += data

    def errors(self) -> str:
        assert self.process.stderr
        self.process.kill()
        return self.process.stderr.read().decode()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stderr
        self.process.stderr.close()


def another(run: str, name: object = "b") -> str:
    """The id of another run of the same test."""
    return f"{name}-{run}"


def answer(name: str, spec: Mapping[str, Any], home: Path, **extra: Any) -> dict[str, Any]:
    """The last J frame of a program that is run to its end."""
    said: dict[str, Any] = {}
    with Running(name, spec, home, **extra) as running:
        for frame in running.frames():
            if frame.kind == b"J":
                said = frame.json()
    return said


def supervise_spec(run: str, argv: list[Any], **changes: Any) -> dict[str, Any]:
    """A spec as the head writes it."""
    return {
        "run": run,
        "host": "n1",
        "node_rank": 0,
        "argv": argv,
        "env": {},
        "env_expand": {},
        "cwd": None,
        "activate": None,
        "ranks": [0],
        "files": RANK_FILES,
        "lease": None,
        "grace": 1.0,
        "node_timeout": 15.0,
        "time": time.time(),
        **changes,
    }


def ranks_argv(*commands: str, first: int = 0) -> list[Any]:
    """An engine that starts one rank a command (a line for sh) and ends like the first of them that fails."""
    line = (
        "".join(f'RANK={first + n} LOCAL_RANK={n} "$@" sh -c "$R{n}" & ' for n in range(len(commands)))
        + "s=0; for p in $(jobs -p); do wait $p || s=$?; done; exit $s"
    )
    return [
        "env",
        *(f"R{n}={command}" for n, command in enumerate(commands)),
        "bash",
        "-c",
        line,
        "engine",
        {"python": True},
        {"run_dir": "rank.py"},
    ]


def folder_of(home: Path, run: str) -> Path:
    return home / ".fleet/runs" / run


def read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def until(condition: Any, timeout: float = LIMIT) -> Any:
    """Wait for something truthy and return it."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {timeout} s: {condition}")


def final(home: Path, run: str, timeout: float = LIMIT) -> dict[str, Any]:
    """The final status of a run, once it has one."""
    path = folder_of(home, run) / "status.json"

    def ended() -> dict[str, Any] | None:
        status = read_json(path) if path.exists() else {"state": "between two attempts"}
        return status if status["state"] in ("exited", "stopped", "lost") else None

    status: dict[str, Any] = until(ended, timeout)
    return status


def marked(run: str) -> list[int]:
    """Pids whose environment carries this run's id."""
    return with_variable("FLEET_RUN_ID", run)


def with_variable(name: str, value: str) -> list[int]:
    """Pids of processes that have NAME=VALUE in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{name}={value}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def alive(pid: int) -> bool:
    """Whether pid runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
