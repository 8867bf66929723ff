"""What is sent to the container where all meet, and to a container that dials it: it is data."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fleet.node.base.clock import CLOCK
from fleet.node.container.server import Server
from tests.meetings import LIMIT, RUN, Meeting
from tests.standin import standin_python

FLEET = Path(sys.executable).with_name("fleet")


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[Callable[..., Meeting]]:
    made = list[Meeting]()

    def make(nodes: int) -> Meeting:
        made.append(Meeting(tmp_path / "runs", nodes))
        return made[-1]

    yield make
    for it in made:
        it.close()


def nested(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


@pytest.mark.parametrize(
    "hello",
    [
        {"each": 1 << 40},
        {"each": -1},
        {"each": "1" * 5000},
        {"each": [2]},
        {"each": True},
        {"rank": 1 << 40},
        {"rank": -1},
        {"rank": {}},
        {"host": 3},
        {"host": None},
        {"about": nested(40)},
        {"token": ["x"], "host": None},
    ],
    ids=lambda hello: repr(hello)[:20],
)
def test_a_hello_out_of_bounds_takes_no_part(meet: Callable[..., Meeting], hello: dict[str, Any]) -> None:
    """Nor does it take anything from those that do: no rank, no memory, no folder."""
    it = meet(2)
    line = it.hello({"host": "x", "rank": 0, "each": 2, "about": it.about, **hello})
    with pytest.raises(OSError):
        line.receive(LIMIT)
    containers = it.all("a", "b")
    for each in containers:
        each.end()
    for each in containers:
        each.verdict()
    found = it.summary()
    assert (list(found["hosts"]), found["world_size"]) == (["a", "b"], 4)


RANK = {"event": "rank", "rank": 2, "time": 1.0, "sent": 1.0}
STATUS = {"event": "status", "state": "exited", "time": 1.0}


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"event": 3},
        {"event": "verdict", "verdict": {"by": "done", "code": 0}},
        {"event": "summary"},
        {**RANK, "rank": 1 << 40},
        {**RANK, "rank": -1},
        {**RANK, "rank": None},
        {**RANK, "rank": "2"},
        {**RANK, "rank": 0},
        {**RANK, "rank": 1000},
        {**RANK, "status": 1 << 40},
        {**RANK, "status": [1]},
        {**RANK, "signal": -9},
        {**RANK, "local_rank": {}},
        {**RANK, "attempt": 1 << 40},
        {**RANK, "time": "soon"},
        {**RANK, "time": 1e300},
        {**RANK, "sent": [1]},
        {**RANK, "begins": 3},
        {**RANK, "begins": [1]},
        {**RANK, "begins": ["a", "b"]},
        {**RANK, "until": 1 << 60},
        {**RANK, "tail": 7},
        {**STATUS, "state": "well"},
        {**STATUS, "state": None},
        {**STATUS, "left": 3},
        {**STATUS, "left": ["x"]},
        {**STATUS, "kernel": [3]},
        {**STATUS, "kernel": [{"time": "x"}]},
        {**STATUS, "reason": {}},
        {**STATUS, "engine_status": 1 << 40},
        {"event": "clock", "up": -1, "sent": 1.0},
        {"event": "clock", "up": 1},
        {"beat": 1, "silent": "x"},
        {"event": "failed"},
        {"event": "failed", "message": ["x"]},
        {"event": "signal"},
        {"event": "signal", "number": 99},
        {"event": "stacks", "rank": 2, "at": 3, "frames": ""},
        {"event": "stacks", "rank": "x", "at": "", "frames": ""},
        {"event": "stacks"},
    ],
    ids=lambda report: repr(report)[:60],
)
def test_who_reports_out_of_bounds_or_nonsense_is_lost(meet: Callable[..., Meeting], report: dict[str, Any]) -> None:
    it = meet(2)
    first, second = it.all("a", "b")
    second.line.send(**report)
    it.pass_time(10.0, first)
    assert first.wait("op") == "stop"
    first.exit(143, "stopped", cause="asked")
    assert first.verdict()["message"] == "b (node rank 1) was lost: its connection ended"
    found = it.summary()
    assert found["exit_code"] == 122 and found["hosts"]["a"]["ranks"] == found["hosts"]["b"]["ranks"] == {}


def test_long_texts_are_cut_and_show_no_controls(
    meet: Callable[..., Meeting], capfd: pytest.CaptureFixture[str]
) -> None:
    it = meet(2)
    first, second = it.all("a", "b\x1b[2J")
    second.rank(0, 1, tail="x" * 60_000, reason="y")
    first.wait("op")
    second.line.send(event="failed", message="\x1b]0;title\x07" + "z" * 60_000, hint=None)
    second.line.send(event="end")
    first.exit(143, "stopped", cause="asked")
    assert len(json.dumps(first.verdict())) < 20_000
    it.summary()
    assert "\x1b" not in capfd.readouterr().err
    assert (it.runs / RUN / "summary.json").stat().st_size < 50_000


# -- what a container gets ------------------------------------------------------------------------------------
BEGIN: dict[str, Any] = {
    "run": RUN,
    "attempt": 0,
    "host": "b",
    "master": "127.0.0.1",
    "address": "127.0.0.1",
    "port": 29500,
    "nodes": [["a", 1], ["b", 1]],
    "node": 1,
    "first": 1,
}
VERDICT: dict[str, Any] = {
    "by": "failure",
    "host": "a",
    "code": 3,
    "who": "",
    "message": "rank 0 on a failed",
    "attempt": 0,
    "first": None,
    "unknown": [],
    "time": 1.0,
}


class Begun:
    """A container, and what stands at MASTER_ADDR in the place of the one that leads: as anybody can who is at the port
    first. It sends the messages, or bytes. folder: what the container is in; code, out: its exit code, its output."""

    def __init__(self, folder: Path, *messages: dict[str, Any] | bytes) -> None:
        self.folder = folder / "work"
        for name in ("victim", "work/runs/old"):
            (folder / name).mkdir(parents=True)
        (self.folder / "runs/latest").symlink_to("old")
        (self.folder / "t.py").write_text("import time\ntime.sleep(600)\n")
        self.before = self.found()
        self.messages, self.over = messages, threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0)) if isinstance(messages[0], bytes) else None
        server = None if self.listener else Server(0, None, CLOCK)
        port = server.port if server else self.listener.getsockname()[1]  # type: ignore[union-attr]
        lead = threading.Thread(target=self.lead if server else self.scream, args=(server,))
        lead.start()
        where = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "2130706433", "MASTER_PORT": str(port)}  # 127.0.0.1
        env = {**os.environ, **where, "NPROC_PER_NODE": "1", "HOME": str(folder)}
        argv = [FLEET, "launch", "--on", "env", "--grace", "1", "--python", standin_python(), "t.py"]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(argv, cwd=self.folder, env=env, **pipe) as process:  # type: ignore[call-overload]
            try:
                self.out, _ = process.communicate(timeout=300)
            finally:
                process.kill()
                self.over.set()
                lead.join()
            self.code = process.returncode

    def lead(self, server: Server) -> None:
        while not self.over.is_set():
            for kind, connection, what in server.turn(0.2):
                if kind == "message" and "about" in what:
                    connection.admitted = True
                    for message in self.messages:
                        connection.send(message)  # type: ignore[arg-type]
        server.close(0.1)

    def scream(self, _: None) -> None:
        assert self.listener
        self.listener.settimeout(300)
        sock, _address = self.listener.accept()
        with sock, self.listener, suppress(OSError):
            sock.recv(1 << 16)
            sock.sendall(self.messages[0])  # type: ignore[arg-type]
            self.over.wait(300)

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
        {"address": "$(id)"},
        {"port": 1 << 40},
        {"node": -1},
        {"nodes": "1" * 5000},
        {"nodes": []},
        {"nodes": [["../x", 1], ["b", 1]]},
        {"nodes": [["a", "1" * 5000], ["b", 1]]},
        {"first": None},
        {"attempt": -1},
    ],
    ids=str,
)
def test_what_begins_with_anything_else_begins_no_run(change: dict[str, Any], tmp_path: Path) -> None:
    it = Begun(tmp_path, {"token": "x"}, {"start": {**BEGIN, **change}})
    assert it.code == 123 and "begins no run of fleet's" in it.out and "Traceback" not in it.out, it.out
    assert it.found() == it.before and os.readlink(it.folder / "runs/latest") == "old"


@pytest.mark.parametrize(
    "answer", [b'{"fleet": ' + b"[" * 60_000 + b"\n", b"y" * (1 << 17), b"[]\n"], ids=("deep", "long", "list")
)
def test_what_begins_with_no_message_begins_no_run(answer: bytes, tmp_path: Path) -> None:
    it = Begun(tmp_path, answer)
    assert it.code == 123 and "is no fleet" in it.out and "Traceback" not in it.out, it.out
    assert it.found() == it.before


@pytest.mark.parametrize(
    "change",
    [3, {"code": 256}, {"code": "3"}, {"by": None}, {"message": 3}, {"unknown": 3}, {"first": 3}, {"attempt": -1}],
    ids=str,
)
def test_what_ends_with_no_verdict_ends_as_if_nobody_led(change: Any, tmp_path: Path) -> None:
    """Its ranks are ended, and its own record says so; on a busy machine they have not begun by then: 123."""
    verdict = {**VERDICT, **change} if isinstance(change, dict) else change
    it = Begun(tmp_path, {"token": "x"}, {"start": BEGIN}, {"verdict": verdict})
    assert it.code in (1, 123) and "Traceback" not in it.out, it.out
    assert "the container where all meet, 127.0.0.1, is gone: what it sends is no verdict" in it.out
    summary = json.loads((it.folder / "runs" / RUN / "summary.json").read_text())
    assert (summary["exit_code"], summary["end"]["by"]) == (122, "lost")


def test_a_verdict_ends_a_run(tmp_path: Path) -> None:
    it = Begun(
        tmp_path, {"token": "x"}, {"start": BEGIN}, {"op": "stop", "grace": 0.1, "reason": "x"}, {"verdict": VERDICT}
    )
    assert f"run {RUN}: node 1 of 2" in it.out and it.code == 1 and "fleet: rank 0 on a failed\n" in it.out, it.out
    summary = json.loads((it.folder / "runs" / RUN / "summary.json").read_text())
    assert (summary["exit_code"], summary["end"]["message"]) == (3, "rank 0 on a failed")


def test_a_run_that_ends_before_it_began_here(tmp_path: Path) -> None:
    it = Begun(tmp_path, {"token": "x"}, {"verdict": VERDICT})
    assert it.code == 123 and "the run ended before this container had a part in it: rank 0 on a" in it.out, it.out
    assert it.found() == it.before


@pytest.mark.parametrize(
    "message",
    [
        {"op": "detach"},
        {"op": "have", "sizes": {}},
        {"op": "stop", "grace": "x", "reason": "x"},
        {"op": "stop", "grace": [], "reason": 3, "end": 7},
        {"op": ["stop"]},
        {"stacks": {"x": 1}},
        {"beat": []},
        {"x": 1},
    ],
    ids=str,
)
def test_what_makes_no_sense_changes_nothing(message: dict[str, Any], tmp_path: Path) -> None:
    it = Begun(tmp_path, {"token": "x"}, {"start": BEGIN}, message, {"verdict": VERDICT})
    assert it.code == 1 and "fleet: rank 0 on a failed\n" in it.out and "Traceback" not in it.out, it.out
