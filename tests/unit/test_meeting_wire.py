"""What strangers send to the port where containers meet, and what a container gets that dials one: at the wire."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fleet.node.container import meeting
from fleet.protocol.state import PROTOCOL
from tests.meetings import ENDED, RUN, Meeting, failure, heard
from tests.standin import standin_python

FLEET = Path(sys.executable).with_name("fleet")


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[Callable[..., Meeting]]:
    made = list[Meeting]()

    def make(nodes: int) -> Meeting:
        made.append(Meeting(tmp_path / "runs", nodes, nodes))
        return made[-1]

    yield make
    for it in made:
        it.close()


def greeted(port: int, hello: bytes) -> bytes:
    """Returns what a stranger gets that sends this first: nothing, once it is hung up."""
    with suppress(ConnectionResetError), socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(hello)
        return sock.recv(1 << 16)
    return b""  # it hung up with something unread


DEEP = b'{"fleet": %d, "host": "x", "rank": 0, "each": 2, "about": ' % PROTOCOL + b"[" * 60_000 + b"\n"


@pytest.mark.parametrize(
    "hello",
    [
        {"each": 1 << 40},
        {"each": -1},
        {"each": "1" * 5000},
        {"each": [2]},
        {"rank": 1 << 40},
        {"rank": -1},
        {"rank": {}},
        {"fleet": PROTOCOL + 1},
        DEEP,
        b"x" * (1 << 17),
    ],
    ids=lambda hello: repr(hello)[:20],
)
def test_a_hello_out_of_bounds_takes_no_part(meet: Callable[..., Meeting], hello: dict[str, Any] | bytes) -> None:
    """Nor does it take anything from those that do: no rank, no memory, no folder."""
    it = meet(2)
    if isinstance(hello, dict):
        plain = {"fleet": PROTOCOL, "host": "x", "rank": 0, "each": 2, "about": it.about}
        hello = json.dumps({**plain, **hello}).encode() + b"\n"
    assert greeted(it.table.port, hello) == b""
    for line in it.all("a", "b"):
        line.send(ended=ENDED)
    found = it.summary()
    assert (list(found["hosts"]), found["world_size"]) == (["a", "b"], 4)


def test_a_hello_that_dribbles_is_late(meet: Callable[..., Meeting], monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte in time is no hello in time: those that hold all doors so would keep the others out."""
    monkeypatch.setattr(meeting, "HELLO_SECONDS", 0.5)
    it = meet(1)
    hello = {"fleet": PROTOCOL, "host": "slow", "rank": 0, "each": 2, "about": it.about}
    with socket.create_connection(("127.0.0.1", it.table.port)) as sock:
        sock.settimeout(0.1)
        began, heard = time.monotonic(), b"?"
        for byte in json.dumps(hello).encode() + b"\n":
            try:
                sock.sendall(bytes([byte]))
                heard = sock.recv(1 << 16)
                break
            except TimeoutError:
                continue
            except OSError:
                heard = b""
                break
    assert heard == b"" and time.monotonic() < began + 5.0
    assert not it.table.begun


@pytest.mark.parametrize(
    "message",
    [
        {"failed": failure("b", 1 << 40), "age": 0},
        {"failed": failure("b", -1), "age": 0},
        {"failed": failure("b", local_rank=1 << 40), "age": 0},
        {"ended": {**ENDED, "code": 256}},
        {"ended": {**ENDED, "ranks": {str(rank): {} for rank in range(5000)}}},
        {"ended": {**ENDED, "ranks": {"0": {"status": 1 << 40}}}},
        {"failed": {}, "age": 0},
        {"failed": 3, "age": 0},
        {"failed": {"exit_code": 1}, "age": "soon"},
        {"failed": {"exit_code": 1}},
        {"failed": {"exit_code": [1], "message": 7}, "age": 0},
        {"ended": {}},
        {"ended": {"code": 0, "state": "exited", "ranks": 3}},
    ],
    ids=lambda message: repr(message)[:40],
)
def test_who_reports_out_of_bounds_or_nonsense_is_lost(meet: Callable[..., Meeting], message: dict[str, Any]) -> None:
    it = meet(2)
    first, second = it.all("a", "b")
    second.send(**message)
    assert heard(first, "failed")["message"] == "b (node rank 1) was lost: its connection ended"
    first.send(ended={**ENDED, "code": 1})
    assert it.summary()["exit_code"] == 122


BEGIN = {"run": RUN, "host": "b", "master": "127.0.0.1", "port": 29500, "nodes": 2, "node": 1, "first": 2}


class Begun:
    """A container, whose table answers as it is told: the wire alone, as anybody can play it who is at the port first.
    folder: what it is in; ended: (its exit code, its output)."""

    def __init__(self, folder: Path, answer: bytes) -> None:
        self.folder = folder / "work"
        for name in ("victim", "work/runs/old"):
            (folder / name).mkdir(parents=True)
        (self.folder / "runs/latest").symlink_to("old")
        (self.folder / "t.py").write_text("")
        self.before = self.found()
        with socket.create_server(("127.0.0.1", 0)) as server:
            where = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "2130706433"}  # 127.0.0.1
            env = {**os.environ, **where, "MASTER_PORT": str(server.getsockname()[1]), "HOME": str(folder)}
            argv = [FLEET, "launch", "--on", "env", "--python", standin_python(), "t.py"]
            pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            with subprocess.Popen(argv, cwd=self.folder, env=env, **pipe) as process:  # type: ignore[call-overload]
                try:
                    server.settimeout(60)
                    sock, _ = server.accept()
                    with sock, suppress(TimeoutError, ConnectionResetError):
                        sock.settimeout(2)
                        sock.recv(1 << 16)
                        sock.sendall(answer)
                        sock.recv(1 << 16)
                    self.out, _ = process.communicate(timeout=60)
                finally:
                    process.kill()
                self.code = process.returncode

    def found(self) -> list[str]:
        return sorted(str(path) for path in self.folder.parent.rglob("*") if ".cache" not in path.parts)


@pytest.mark.parametrize(
    "change",
    [
        {"run": "../../victim"},
        {"run": "/tmp/victim"},
        {"run": "latest"},
        {"run": ["x"]},
        {"host": "../x"},
        {"host": "-oProxyCommand=id"},
        {"master": "-x"},
        {"master": "a b"},
        {"port": 1 << 40},
        {"node": -1},
        {"nodes": "1" * 5000},
        {"first": None},
    ],
    ids=str,
)
def test_what_begins_with_anything_else_begins_no_run(change: dict[str, Any], tmp_path: Path) -> None:
    it = Begun(tmp_path, json.dumps({"begin": {**BEGIN, **change}}).encode() + b"\n")
    assert it.code == 123 and "begins no run of fleet's" in it.out and "Traceback" not in it.out, it.out
    assert it.found() == it.before and os.readlink(it.folder / "runs/latest") == "old"


@pytest.mark.parametrize(
    "answer", [b'{"begin": ' + b"[" * 60_000 + b"\n", b"y" * (1 << 17), b"[]\n"], ids=("deep", "long", "list")
)
def test_what_begins_with_no_message_begins_no_run(answer: bytes, tmp_path: Path) -> None:
    it = Begun(tmp_path, answer)
    assert it.code == 123 and "is no fleet" in it.out and "Traceback" not in it.out, it.out
    assert it.found() == it.before


def test_what_begins_as_a_run_does_begins_one(tmp_path: Path) -> None:
    it = Begun(tmp_path, json.dumps({"begin": BEGIN}).encode() + b"\n")
    assert f"run {RUN}: node 1 of 2" in it.out and (it.folder / "runs" / RUN).is_dir(), it.out
