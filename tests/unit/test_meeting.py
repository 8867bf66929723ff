"""Where the containers of a platform meet: who may, whose failure was the first, and what is written down of a run."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fleet.answers.event import RunEvent
from fleet.answers.run_events import Running, RunOver, StopAll, Version
from fleet.answers.runs import FirstFailure, RunSummary
from fleet.codec import from_json
from fleet.errors import UsageError
from fleet.node.base.errors import Refused
from fleet.node.container import meeting
from fleet.node.container.line import Line, dial
from fleet.node.container.logs import Logs, why
from fleet.node.container.meeting import Table
from fleet.node.container.record import Record, check_runs
from fleet.node.container.start import answer_in
from fleet.ops.run.find.again import recorded
from fleet.ops.run.kept.local import local_runs, prune
from fleet.ops.run.kept.reader import NewEvents
from fleet.protocol.frames import HEADER, MESSAGE, PREAMBLE
from fleet.transport.local import LocalTransport
from tests.in_process import command_line

RUN = "t-20261128-101112-00ff"
ABOUT = {"platform": "aistation", "engine": "torchrun", "lease": 0.0, "fleet": {"transport": "env"}}
ENDED = {"code": 0, "state": "exited", "reason": None, "ranks": {}}


def failure(host: str, code: int = 1, what: str = "rank", **more: Any) -> dict[str, Any]:
    about = {"host": host, "node_rank": 0, "rank": 0, "exit_code": code, "what": what, "message": f"{host} failed"}
    return {**about, **more}


class Meeting:
    """A table, and containers that dial it from this process."""

    def __init__(self, runs: Path, least: int, most: int) -> None:
        self.runs, self.reports = runs, list[str]()
        self.about = {"job": "j", "least": least, "most": most}
        self.table = Table(0, self.about, Record(str(runs), RUN, ABOUT), self.reports.append)
        self.pool, self.lines = ThreadPoolExecutor(128), list[Line]()

    def dial(self, name: str, rank: int | None = None) -> tuple[Line, dict[str, Any]]:
        hello = {"host": name, "rank": rank, "each": 2, "about": self.about}
        found = dial("127.0.0.1", self.table.port, hello, 20.0, lambda text: None)
        self.lines.append(found[0])
        return found

    def all(self, *names: str) -> list[Line]:
        """Once they have begun."""
        return [line for line, _ in self.pool.map(self.dial, names, range(len(names)))]

    def close(self) -> None:
        self.table.close()
        for line in self.lines:
            line.sock.close()
        self.pool.shutdown()

    def summary(self) -> dict[str, Any]:
        self.table.rest(20.0, bool)
        found: dict[str, Any] = json.loads((self.runs / RUN / "summary.json").read_text())
        from_json(RunSummary, found)
        return found

    def events(self) -> list[RunEvent]:
        return [event for notice in NewEvents(self.runs / RUN / "events.jsonl").read() for event in notice.happened]


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[Callable[..., Meeting]]:
    made = list[Meeting]()

    def make(least: int, most: int | None = None) -> Meeting:
        made.append(Meeting(tmp_path / "runs", least, most or least))
        return made[-1]

    yield make
    for it in made:
        it.close()


def heard(line: Line, kind: str) -> dict[str, Any]:
    """The next message of the kind."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        message = line.receive(1.0)
        if message is not None and kind in message:
            return dict(message[kind])
    raise AssertionError(f"no {kind} came")


def test_one_record_as_of_any_run(meet: Callable[..., Meeting], tmp_path: Path) -> None:
    it = meet(3)
    lines = it.all("a", "b", "c")
    assert [run.state for run in local_runs(it.runs)] == ["followed"]
    for line in lines:
        line.send(ended=ENDED)
    found = it.summary()
    assert (found["exit_code"], list(found["hosts"]), found["world_size"]) == (0, ["a", "b", "c"], 6)
    run = local_runs(it.runs)[0]
    assert (run.run, run.state, run.engine, run.broken) == (RUN, "done", "torchrun", None)
    assert (it.runs / "latest").resolve() == it.runs / RUN and (it.runs / ".gitignore").exists()
    plan = json.loads((it.runs / RUN / "run.json").read_text())
    assert plan["world_size"] == 6 and plan["hosts"]["b"] == {"node_rank": 1, "ranks": [2, 3]}
    kinds = [type(event) for event in it.events()]
    assert kinds == [Version, Running, RunOver]
    with pytest.raises(UsageError, match="is of containers that a platform started"):
        recorded(RUN, it.runs)
    assert prune(run) == [] and local_runs(it.runs) == []


def test_the_first_failure_is_the_one_that_came_first(meet: Callable[..., Meeting]) -> None:
    """What it took down is reported before it."""
    it = meet(3)
    victim, culprit, third = it.all("a", "b", "c")
    victim.send(failed=failure("a"), age=0.1)
    time.sleep(0.3)
    culprit.send(failed=failure("b", 7, why="ValueError: no such sample"), age=1.0)
    first = [heard(line, "failed") for line in (victim, culprit, third)]
    assert [each["host"] for each in first] == ["b", "b", "b"]
    for line in (victim, culprit, third):
        line.send(ended={**ENDED, "code": 1})
    found = it.summary()
    assert (found["exit_code"], found["first_failure"]["why"]) == (7, "ValueError: no such sample")
    assert from_json(FirstFailure, found["first_failure"]).host == "b"
    assert [event.reason for event in it.events() if isinstance(event, StopAll)] == ["b failed"]
    assert local_runs(it.runs)[0].state == "failed"


def test_a_container_that_is_lost_ends_the_others(meet: Callable[..., Meeting]) -> None:
    it = meet(2)
    first, second = it.all("a", "b")
    second.sock.close()
    failed = heard(first, "failed")
    assert (failed["host"], failed["exit_code"], failed["what"]) == ("b", 122, "node")
    assert failed["message"] == "b (node rank 1) was lost: its connection ended"
    first.send(ended={**ENDED, "code": 1})
    found = it.summary()
    assert found["exit_code"] == 122 and found["hosts"]["b"]["state"] == "lost" and not found["hosts"]["b"]["ok"]


def test_a_container_that_is_silent_is_lost(meet: Callable[..., Meeting], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(meeting, "BEAT_SECONDS", 0.2)
    it = meet(2)
    first, second = it.all("a", "b")
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.1):
            first.send(beat=1)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    assert heard(first, "failed")["message"].startswith("b (node rank 1) was lost: silent for 1 s")
    over.set()
    thread.join()
    assert second.sock.fileno() >= 0


def test_an_elastic_run_goes_on_without_one(meet: Callable[..., Meeting]) -> None:
    it = meet(2, 3)
    lines = it.all("a", "b", "c")
    lines[2].sock.close()
    assert heard(lines[0], "lost") == {"host": "c"} == heard(lines[1], "lost")
    late, begin = it.dial("d")
    assert (begin["host"], begin["node"]) == ("d", 3)
    for line in (lines[0], lines[1], late):
        line.send(ended=ENDED)
    found = it.summary()
    assert found["exit_code"] == 0 and {name: host["state"] for name, host in found["hosts"].items()} == {
        "a": "exited",
        "b": "exited",
        "c": "lost",
        "d": "exited",
    }


def test_the_end_that_a_platform_makes_is_no_failure(meet: Callable[..., Meeting]) -> None:
    it = meet(1)
    (line,) = it.all("a")
    line.send(failed=failure("a", 143, "signal"), age=0.0)
    assert heard(line, "failed")["what"] == "signal"
    line.send(ended={**ENDED, "code": 143, "state": "stopped"})
    found = it.summary()
    assert found["first_failure"] is None and found["exit_code"] == 143
    assert found["end"] == {"by": "queue", "host": "a", "code": 143, "who": "", "message": "a failed"}


def test_a_hundred_containers(meet: Callable[..., Meeting]) -> None:
    """More than there may be strangers at a time."""
    it = meet(100)
    names = [f"n{number:03}" for number in range(100)]
    lines = it.all(*names)
    for line in lines:
        line.send(ended=ENDED)
    found = it.summary()
    assert list(found["hosts"]) == names and found["exit_code"] == 0


def test_strangers_keep_nobody_out(meet: Callable[..., Meeting], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "HELLO_SECONDS", 0.5)
    it = meet(2)
    silent = [socket.create_connection(("127.0.0.1", it.table.port)) for _ in range(80)]
    for text in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"[]\n",
        b"1\n",
        b'{"fleet": 1}\n',
        b"\xff\n",
        b'{"fleet": 1, "host": 3}\n',
    ):
        with socket.create_connection(("127.0.0.1", it.table.port)) as sock:
            sock.sendall(text)
    assert len(it.all("a", "b")) == 2
    for sock in silent:
        sock.close()


@pytest.mark.parametrize(
    "message",
    [
        {"failed": {}, "age": 0},
        {"failed": 3, "age": 0},
        {"failed": {"exit_code": 1}, "age": "soon"},
        {"failed": {"exit_code": 1}},
        {"failed": {"exit_code": [1], "message": 7}, "age": 0},
        {"ended": {}},
        {"ended": {"code": 0, "state": "exited", "ranks": 3}},
    ],
)
def test_who_sends_what_makes_no_sense_is_lost(meet: Callable[..., Meeting], message: dict[str, Any]) -> None:
    it = meet(2)
    first, second = it.all("a", "b")
    second.send(**message)
    assert heard(first, "failed")["message"] == "b (node rank 1) was lost: its connection ended"
    first.send(ended={**ENDED, "code": 1})
    assert it.summary()["exit_code"] == 122


def test_a_failure_is_its_senders(meet: Callable[..., Meeting]) -> None:
    it = meet(2)
    first, second = it.all("a", "b")
    second.send(failed=failure("a", 3, node_rank=0, more="than is known"), age=0.0)
    failed = heard(first, "failed")
    assert (failed["host"], failed["node_rank"], failed["exit_code"]) == ("b", 1, 3) and "more" not in failed


def test_names_that_are_no_folders(meet: Callable[..., Meeting]) -> None:
    it = meet(4)
    found = list(it.pool.map(it.dial, ["../../etc", "x", "x", ".."], range(4)))
    hosts = {begin["host"] for _, begin in found}
    assert len(hosts) == 4 and not any("/" in host or host.startswith(".") for host in hosts)


def test_a_folder_that_cannot_be_made_ends_all(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    it = Meeting(tmp_path / "runs", 2, 2)
    refused = [it.pool.submit(it.dial, name) for name in "ab"]
    for each in refused:
        with pytest.raises(Refused, match="cannot make the log folder"):
            each.result(20)
    it.table.rest(5.0, bool)
    it.close()


def test_who_shares_no_folder_writes_its_own(tmp_path: Path) -> None:
    hosts = {"a": {"node_rank": 0, "ranks": [0]}}
    leads, shares, apart = (Record(str(tmp_path / name), RUN, ABOUT) for name in ("x", "x", "y"))
    assert [it.begin(hosts, "m", 1) for it in (leads, shares, apart)] == [True, False, True]
    shares.end(0, {}, None)
    assert not (tmp_path / "x" / RUN / "summary.json").exists()
    apart.end(0, {}, None)
    assert local_runs(tmp_path / "y")[0].state == "done" and local_runs(tmp_path / "x")[0].state == "followed"


def test_a_folder_of_runs_is_tried_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert check_runs(str(tmp_path / "new" / "runs")) is None
    assert check_runs(str(tmp_path / "file" / "runs")) == f"{tmp_path}/file is no folder"


def test_verbs_that_reach_no_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = Record("runs", RUN, ABOUT)
    record.begin({"a": {"node_rank": 0, "ranks": [0]}}, "m", 1)
    (tmp_path / "runs" / RUN / "a").mkdir()
    (tmp_path / "runs" / RUN / "a" / "rank0.out").write_text("hello\n")
    for verb in ("stop", "attach", "stacks"):
        done = command_line([verb, "latest"], LocalTransport())
        text = " ".join(done.err.split())
        assert done.code == 121 and f"run {RUN} is of containers that a platform (aistation) started" in text, verb
    record.end(0, {}, None)
    for words in (["logs", "latest"], ["logs", "-f", "t"]):
        done = command_line(words, LocalTransport())
        assert (done.code, done.out) == (0, "[a:0] hello\n"), done


def test_logs_wait_for_room(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0.out").write_text("one\ntwo")
    logs = Logs(str(tmp_path), str(tmp_path / "target"), "a")
    for _ in range(3):
        logs.bring()
    out, err = capfd.readouterr()
    assert out == "" and err.count("takes no logs: No such file or directory; they wait in") == 1
    (tmp_path / "target").mkdir()
    logs.finish()
    assert (tmp_path / "target" / "rank0.out").read_text() == "one\ntwo" and logs.blocked is None
    assert capfd.readouterr().out == "[a:0] one\n[a:0] two\n"


def test_who_is_hurried_does_not_wait_for_all(meet: Callable[..., Meeting], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "HURRY_SECONDS", 0.3)
    it = meet(2)
    first, _ = it.all("a", "b")
    first.send(ended={**ENDED, "code": 143, "state": "stopped"})
    began = time.monotonic()
    it.table.rest(60.0, lambda: True)
    assert time.monotonic() < began + 20
    found = json.loads((it.runs / RUN / "summary.json").read_text())
    assert found["unknown"] == ["b"] and found["exit_code"] == 143


def test_what_a_supervisor_answers() -> None:
    def frame(kind: bytes, payload: bytes) -> bytes:
        return struct.pack(HEADER, kind, 0, len(payload)) + payload

    message = b'{"event": "started", "dir": "/a}b", "pid": 1}'
    output = b"motd {\n" + PREAMBLE + frame(b"H", b"") + frame(MESSAGE, message) + frame(b"X", b'{"exit_status": 0}')
    assert answer_in(output) == {"event": "started", "dir": "/a}b", "pid": 1}
    assert answer_in(b"") == answer_in(PREAMBLE) == answer_in(b"Traceback") == {}


def test_the_line_that_says_why() -> None:
    lines = [
        "Traceback (most recent call last):",
        "ValueError: no such sample",
        "W1128 destroy_process_group() was not",
    ]
    assert why(lines) == "ValueError: no such sample" and why(["killed"]) == "killed"
    assert why([]) == "it wrote nothing of why"
