"""Where the containers of a platform meet: who may, and whose failure was the first."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fleet
from fleet.node.base.errors import Refused
from fleet.node.container import meeting
from tests.in_process import command_line
from tests.meetings import ENDED, RUN, Meeting, failure, heard


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[Callable[..., Meeting]]:
    made = list[Meeting]()

    def make(least: int, most: int | None = None) -> Meeting:
        made.append(Meeting(tmp_path / "runs", least, most or least))
        return made[-1]

    yield make
    for it in made:
        it.close()


def test_one_record_as_of_any_run(meet: Callable[..., Meeting], tmp_path: Path) -> None:
    it = meet(3)
    lines = it.all("a", "b", "c")
    assert [run.state for run in fleet.runs(it.runs)] == ["followed"]
    for line in lines:
        line.send(ended=ENDED)
    found = it.summary()
    assert (found["exit_code"], list(found["hosts"]), found["world_size"]) == (0, ["a", "b", "c"], 6)
    run = fleet.runs(it.runs)[0]
    assert (run.run, run.state, run.engine, run.broken) == (RUN, "done", "torchrun", None)
    assert (it.runs / "latest").resolve() == it.runs / RUN and (it.runs / ".gitignore").exists()
    plan = json.loads((it.runs / RUN / "run.json").read_text())
    assert plan["world_size"] == 6 and plan["hosts"]["b"] == {"node_rank": 1, "ranks": [2, 3]}
    assert [event.event for event in it.events()] == ["version", "running", "summary"]
    again = command_line(["launch", "--again", RUN, "--runs-dir", str(it.runs)], None)
    assert again.code == 2 and "is of containers that a platform started" in " ".join(again.err.split()), again
    assert fleet.runs(it.runs, prune=True, keep=0) == [run] and not (it.runs / RUN).exists()


def test_the_first_failure_is_the_one_that_came_first(meet: Callable[..., Meeting]) -> None:
    """What it took down is reported before it."""
    it = meet(3)
    victim, culprit, third = it.all("a", "b", "c")
    victim.send(failed=failure("a"), age=0.1)
    culprit.send(failed=failure("b", 7, why="ValueError: no such sample"), age=1.0)
    first = [heard(line, "failed") for line in (victim, culprit, third)]
    assert [each["host"] for each in first] == ["b", "b", "b"]
    for line in (victim, culprit, third):
        line.send(ended={**ENDED, "code": 1})
    found = it.summary()
    assert (found["exit_code"], found["first_failure"]["why"]) == (7, "ValueError: no such sample")
    stops = [event for event in it.events() if event.event == "stop"]
    assert found["first_failure"]["host"] == "b" and [event.as_json(0.0)["reason"] for event in stops] == ["b failed"]
    assert fleet.runs(it.runs)[0].state == "failed"


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
