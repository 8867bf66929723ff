"""Runs whose containers a platform starts, by what leads them: who may take part, when they begin, how they end."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fleet
from tests.in_process import command_line
from tests.meetings import RUN, Container, Meeting
from tests.node.nodes import until

Meet = Callable[..., Meeting]


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[Meet]:
    made = list[Meeting]()

    def make(*nodes: int, **spec: Any) -> Meeting:
        made.append(Meeting(tmp_path / "runs", *nodes, **spec))
        return made[-1]

    yield make
    for it in made:
        it.close()


def verdicts(*containers: Container) -> list[dict[str, Any]]:
    return [each.verdict() for each in containers]


# -- the record -----------------------------------------------------------------------------------------------
def test_one_record_as_of_any_run(meet: Meet, tmp_path: Path) -> None:
    it = meet(3)
    containers = it.all("a", "b", "c")
    assert [(each.begin["node"], each.begin["first"], each.begin["attempt"]) for each in containers] == [
        (0, 0, 0),
        (1, 2, 0),
        (2, 4, 0),
    ]
    assert [run.state for run in fleet.runs(it.runs)] == ["followed"]
    for each in containers:
        each.end()
    for verdict in verdicts(*containers):
        assert (verdict["by"], verdict["code"], verdict["unknown"]) == ("done", 0, [])
    found = it.summary()
    assert (found["exit_code"], list(found["hosts"]), found["world_size"]) == (0, ["a", "b", "c"], 6)
    run = fleet.runs(it.runs)[0]
    assert (run.run, run.state, run.engine, run.broken) == (RUN, "done", "torchrun", None)
    assert (it.runs / "latest").resolve() == it.runs / RUN and (it.runs / ".gitignore").exists()
    plan = json.loads((it.runs / RUN / "run.json").read_text())
    assert plan["world_size"] == 6 and plan["hosts"]["b"] == {"node_rank": 1, "ranks": [2, 3]}
    kinds = it.kinds()
    assert kinds[:2] == ["version", "running"] and kinds[-1] == "summary" and kinds.count("rank") == 6
    again = command_line(["launch", "--again", RUN, "--runs-dir", str(it.runs)], None)
    assert again.code == 2 and "is of containers that a platform started" in " ".join(again.err.split()), again
    assert fleet.runs(it.runs, prune=True, keep=0) == [run] and not (it.runs / RUN).exists()


def test_a_hundred_containers(meet: Meet) -> None:
    """More than there may be strangers at a time."""
    it = meet(100)
    names = [f"n{number:03}" for number in range(100)]
    containers = it.all(*names)
    for each in containers:
        each.end()
    assert {verdict["by"] for verdict in verdicts(*containers)} == {"done"}
    found = it.summary()
    assert list(found["hosts"]) == names and found["exit_code"] == 0 and found["world_size"] == 200


def test_names_that_are_no_folders(meet: Meet) -> None:
    it = meet(5)
    containers = it.all("../../etc", "x", "x", "..", "-rf")
    hosts = [each.begin["host"] for each in containers]
    assert len(set(hosts)) == 5 and not any("/" in host or host.startswith((".", "-")) for host in hosts), hosts


def test_a_folder_that_cannot_be_made_ends_all(meet: Meet, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    it = meet(2)
    for each in [it.dial(name) for name in "ab"]:
        assert "cannot make the log folder" in each.wait("refused")


# -- who takes part -------------------------------------------------------------------------------------------
def refusal(container: Container) -> str:
    (message,) = container.inbox
    assert message["hint"]
    return str(message["refused"])


def test_who_may_not_take_part_gets_why_and_nothing_of_the_run(meet: Meet) -> None:
    it = meet(2)
    first = it.dial("a", 0)
    first.token = first.wait("token")
    assert refusal(it.dial("b", 0)) == "two containers have node rank 0"
    for other in ({"job": "x"}, {"least": 1}, {"most": 4096}, {"more": 1}):
        assert refusal(it.dial("b", 1, about={**it.about, **other})) == "another run meets there"
    second = it.dial("b", 1)
    first.begun()
    second.begun()
    assert refusal(it.dial("c", 2)) == "all 2 containers are there already"
    for each in (first, second):
        each.end()
    verdicts(first, second)
    assert list(it.summary()["hosts"]) == ["a", "b"]


def test_who_goes_before_the_run_begins_leaves_its_place(meet: Meet) -> None:
    it = meet(2)
    it.dial("a", 0).line.close()
    containers = [it.dial("b", 1)]
    until(lambda: [each.host for each in it.coordinator.roll.members] == ["b"])
    containers.append(it.dial("c", 0))
    assert [each.begun().begin["node"] for each in containers] == [1, 0]


def test_strangers_keep_nobody_out(meet: Meet) -> None:
    it = meet(2)
    silent = [socket.create_connection(("127.0.0.1", it.server.port)) for _ in range(80)]
    for text in (b"GET / HTTP/1.0\r\n\r\n", b"[]\n", b"1\n", b'{"fleet": 1}\n', b"\xff\n", b'{"token": 1}\n'):
        with socket.create_connection(("127.0.0.1", it.server.port)) as sock:
            sock.sendall(text)
    assert len(it.all("a", "b")) == 2
    for sock in silent:
        sock.close()


# -- the first failure ----------------------------------------------------------------------------------------
def test_the_first_failure_is_the_one_that_came_first(meet: Meet) -> None:
    """What it took down is reported before it."""
    it = meet(3)
    victim, culprit, third = it.all("a", "b", "c")
    victim.rank(0, 1, 0.1, tail="RuntimeError: Connection closed by peer\n")
    for each in (culprit, third):
        assert each.wait("op") == "stop"
    trace = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f()\n'
    culprit.rank(1, 1, 1.0, tail=trace + "ValueError: no such sample\n")
    for each in (victim, culprit, third):
        each.exit(1)
    for verdict in verdicts(victim, culprit, third):
        assert (verdict["host"], verdict["code"]) == ("b", 1)
        assert verdict["message"] == "rank 3 on b (node rank 1) failed: exit code 1"
    found = it.summary()
    first = found["first_failure"]
    assert (first["rank"], first["host"], first["why"]) == (3, "b", "ValueError: no such sample")
    stops = [event for event in it.events() if event.event == "stop"]
    assert [event.as_json(0.0)["reason"] for event in stops] == ["rank 0 on a failed"]
    assert found["exit_code"] == 1 and fleet.runs(it.runs)[0].state == "failed"


def test_who_only_reports_the_end_of_another_is_passed_over(meet: Meet) -> None:
    """By its last words, where both fail at the same moment."""
    it = meet(2)
    victim, culprit = it.all("a", "b")
    culprit.rank(0, 1, tail="ValueError: no such sample\n", before="ValueError: no such sample\n")
    lament = "RuntimeError: [/pytorch/gloo/pair.cc:534] Connection closed by peer [10.0.0.2]:1234\n"
    victim.rank(0, 1, 0.05, tail=lament, before=lament)
    for each in (victim, culprit):
        each.exit(1)
    assert [verdict["host"] for verdict in verdicts(victim, culprit)] == ["b", "b"]
    assert it.summary()["first_failure"]["why"] == "ValueError: no such sample"


def test_a_report_is_of_its_sender(meet: Meet) -> None:
    """Nobody reports the end of another one's rank."""
    it = meet(2)
    first, second = it.all("a", "b")
    second.rank(0, 3, host="a", node_rank=0, more="than is known")
    first.wait("op")
    for each in (first, second):
        each.exit(1)
    assert [verdict["host"] for verdict in verdicts(first, second)] == ["b", "b"]
    assert "more" not in json.dumps(it.summary())


def test_the_end_that_a_platform_makes_is_no_failure(meet: Meet) -> None:
    it = meet(2)
    first, second = it.all("a", "b")
    first.line.send(event="signal", number=15)
    for each in (first, second):
        message = each.line.receive(20.0)
        assert message is not None and (message["op"], message["grace"]) == ("stop", 25.0)
        each.rank(0, None, asked=True)
        each.exit(143, "stopped", reason="x", cause="asked")
    for verdict in verdicts(first, second):
        assert verdict["by"] == "queue" and verdict["code"] == 143
    found = it.summary()
    assert found["first_failure"] is None and found["exit_code"] == 143
    assert found["end"]["message"] == "a was ended by signal 15 of its platform"


@pytest.mark.parametrize("number", [2, 15])
def test_who_comes_back_while_all_stop_still_has_the_whole_grace(meet: Meet, number: int) -> None:
    it = meet(2)
    first, second = it.all("a", "b")
    first.line.send(event="signal", number=number)
    stops = [each.line.receive(20.0) for each in (first, second)]
    second.line.close()
    it.pass_time(2.0, first)
    it.resume(second)
    stops.append(second.line.receive(20.0))
    for stop in stops:
        assert stop is not None and (stop["op"], stop["grace"], stop["interrupt"]) == ("stop", 25.0, number == 2)
    for each in (first, second):
        each.rank(0, None, asked=True)
        each.exit(128 + number, "stopped", reason="x", cause="asked")
    assert [verdict["code"] for verdict in verdicts(first, second)] == [128 + number] * 2


# -- who is lost ----------------------------------------------------------------------------------------------
def test_a_container_that_is_lost_ends_the_others(meet: Meet) -> None:
    it = meet(2)
    first, second = it.all("a", "b")
    second.line.close()
    it.pass_time(10.0, first)
    assert first.wait("op") == "stop"
    first.exit(143, "stopped", cause="asked")
    verdict = first.verdict()
    assert (verdict["by"], verdict["host"], verdict["code"], verdict["unknown"]) == ("lost", "b", 122, ["b"])
    assert verdict["message"] == "b (node rank 1) was lost: its connection ended"
    found = it.summary()
    assert found["exit_code"] == 122 and found["hosts"]["b"]["state"] == "lost" and not found["hosts"]["b"]["ok"]


def test_a_container_that_is_silent_is_lost(meet: Meet) -> None:
    it = meet(2, node_timeout=20.0)
    first, second = it.all("a", "b")
    it.pass_time(14.0, first)
    second.line.send(beat=1)
    it.pass_time(18.0, first)
    assert not [message for message in first.inbox if "op" in message]
    it.pass_time(8.0, first)
    assert first.wait("op") == "stop"
    first.exit(143, "stopped", cause="asked")
    assert first.verdict()["message"].startswith("b (node rank 1) was lost: silent for 2")


def test_a_connection_that_breaks_and_comes_back_loses_nothing(meet: Meet) -> None:
    it = meet(2)
    first, second = it.all("a", "b")
    second.rank(0)
    second.line.close()
    it.pass_time(2.0, first)
    it.resume(second)
    until(lambda: all(member.there for member in it.coordinator.roll.members))
    it.pass_time(10.0, first, second)
    second.rank(0)  # all that its node reports is sent again
    second.rank(1, 3)
    assert first.wait("op") == "stop"
    for each in (first, second):
        each.exit(1)
    assert [verdict["code"] for verdict in verdicts(first, second)] == [3, 3]
    assert it.summary()["unknown"] == []


def test_nobody_takes_the_place_of_another_without_its_token(meet: Meet) -> None:
    it = meet(2)
    first, second = it.all("a", "b")
    for token in ("", "0" * 32, 7, None, [second.token]):
        with pytest.raises(OSError, match="closed"):
            it.hello({"token": token, "host": None}).receive(20.0)
    for each in (first, second):
        each.end()
    assert {verdict["by"] for verdict in verdicts(first, second)} == {"done"}


# -- an elastic run -------------------------------------------------------------------------------------------
def test_an_elastic_run_goes_on_without_one_and_takes_another(meet: Meet) -> None:
    it = meet(2, 3)
    containers = it.all("a", "b", "c")
    containers[2].line.close()
    living = containers[:2]
    it.pass_time(10.0, *living)
    assert "away" in it.kinds()
    late = it.dial("d").begun()
    assert (late.begin["host"], late.begin["node"]) == ("d", 3)
    living.append(late)
    for each in living:
        each.end()
    assert {verdict["by"] for verdict in verdicts(*living)} == {"done"}
    found = it.summary()
    assert found["exit_code"] == 0 and {name: host["state"] for name, host in found["hosts"].items()} == {
        "a": "exited",
        "b": "exited",
        "c": "lost",
        "d": "exited",
    }


def test_an_elastic_run_begins_with_those_that_are_there(meet: Meet) -> None:
    it = meet(2, 3)
    containers = [it.dial(name) for name in "ab"]
    for each in containers:
        each.token = each.wait("token")
    it.pass_time(14.0, *containers)
    assert not [message for message in containers[0].inbox if "start" in message]
    it.pass_time(4.0, *containers)
    assert [len(each.begun().begin["nodes"]) for each in containers] == [2, 2]


def test_an_elastic_run_ends_with_fewer_than_it_needs(meet: Meet) -> None:
    it = meet(2, 3)
    first, second, third = it.all("a", "b", "c")
    third.line.close()
    it.pass_time(10.0, first, second)
    second.line.close()
    it.pass_time(10.0, first)
    while first.wait("op") != "stop":
        pass  # "renew-ranks": those that would wait for who is gone
    first.exit(143, "stopped", cause="asked")
    assert "1 of 3 nodes are left, --nnodes asks for 2" in first.verdict()["message"]
    assert it.summary()["exit_code"] == 122


# -- restarts and stalls --------------------------------------------------------------------------------------
def test_a_failure_restarts_all(meet: Meet) -> None:
    it = meet(2, max_restarts=2)
    containers = it.all("a", "b")
    ports = {containers[0].begin["port"]}
    for attempt in range(3):
        containers[1].rank(0, 5 + attempt)
        for each in containers:
            each.wait("op")
            each.exit(1)
        if attempt < 2:
            until(lambda attempt=attempt: it.kinds().count("restart") == attempt + 1)  # type: ignore[misc]
            it.pass_time(4.0, *containers)
            assert [each.begun().begin["attempt"] for each in containers] == [attempt + 1] * 2
            ports.add(containers[0].begin["port"])
    for verdict in verdicts(*containers):
        assert (verdict["attempt"], verdict["code"]) == (2, 7)
    found = it.summary()
    assert (found["attempt"], [each["exit_code"] for each in found["restarts"]]) == (2, [5, 6])
    assert [each["restart"] for each in found["restarts"]] == [1, 2] and len(ports) == 3
    assert [kind for kind in it.kinds() if kind in ("running", "restart", "attempt")] == [
        *("running", "restart", "attempt"),
        *("restart", "attempt"),
    ]


def without_one(meet: Meet) -> tuple[Meeting, Container]:
    """Returns a meeting whose second container is lost, in the pause before a restart, and the first one."""
    it = meet(2, max_restarts=1)
    first, second = it.all("a", "b")
    second.line.close()
    it.pass_time(10.0, first)
    first.wait("op")
    first.exit(143, "stopped", cause="asked")
    until(lambda: "restart" in it.kinds())
    return it, first


def test_a_container_that_its_platform_starts_again_takes_its_place(meet: Meet) -> None:
    it, first = without_one(meet)
    it.pass_time(4.0, first)
    assert not [message for message in first.inbox if "start" in message], "it waits for the one that was lost"
    again = it.dial("b", 1).begun()
    assert (again.begin["host"], again.begin["node"], again.begin["attempt"]) == ("b", 1, 1)
    for each in (first.begun(), again):
        each.end()
    assert {verdict["by"] for verdict in verdicts(first, again)} == {"done"}
    found = it.summary()
    assert (found["attempt"], found["exit_code"]) == (1, 0) and found["restarts"][0]["host"] == "b"


def test_one_that_is_started_again_at_once_waits_for_the_restart(meet: Meet) -> None:
    """Before it is known that it was lost; where no restart is left it takes no part."""
    it = meet(2, max_restarts=1)
    first, second = it.all("a", "b")
    for attempt in (0, 1):
        second.line.close()
        until(lambda: not all(member.there for member in it.coordinator.roll.members))
        again = it.dial("b", 1)
        if attempt:
            assert refusal(again) == "the run has begun"
            break
        first.wait("op")
        it.pass_time(2.0, first, again)
        first.exit(143, "stopped", cause="asked")
        until(lambda: "restart" in it.kinds())
        it.pass_time(4.0, first, again)
        assert (again.begun().begin["node"], first.begun().begin["attempt"]) == (1, 1)
        second = again
    it.pass_time(10.0, first)
    first.wait("op")
    first.exit(143, "stopped", cause="asked")
    assert first.verdict()["host"] == "b"
    assert (
        it.summary()["restarts"][0]["message"]
        == "restart 1 of 1 in 1 s: b (node rank 1) was lost: its platform has started it again"
    )


def test_a_restart_whose_container_does_not_come_ends_the_run(meet: Meet) -> None:
    it, first = without_one(meet)
    it.pass_time(34.0, first)
    verdict = first.verdict()
    assert (verdict["host"], verdict["code"], verdict["attempt"]) == ("b", 122, 0)
    assert "no-restart" in it.kinds() and it.summary()["exit_code"] == 122


def test_the_platforms_signal_between_two_attempts_ends_the_run(meet: Meet) -> None:
    it = meet(2, max_restarts=3)
    containers = it.all("a", "b")
    containers[1].rank(0, 5)
    for each in containers:
        each.wait("op")
        each.exit(1)
    until(lambda: "restart" in it.kinds())
    containers[0].line.send(event="signal", number=15)
    for verdict in verdicts(*containers):
        assert (verdict["by"], verdict["code"]) == ("queue", 143)
    assert it.summary()["first_failure"] is None


def test_a_run_that_stalls_is_ended(meet: Meet) -> None:
    it = meet(2, stall_timeout=30.0)
    containers = it.all("a", "b")
    it.pass_time(20.0, *containers)
    containers[1].line.send(beat=1, silent=0.0)
    it.pass_time(20.0, *containers)
    assert not [message for message in containers[0].inbox if "stacks" in message]
    it.pass_time(16.0, *containers)  # what that beat says may have come with the one after it
    for number, each in enumerate(containers):
        each.wait("stacks")
        for rank in (2 * number, 2 * number + 1):
            each.line.send(event="stacks", rank=rank, at="f (t.py:1)", frames="    f (t.py:1)\n")
    for each in containers:
        assert each.wait("op") == "stop"
        each.exit(143, "stopped", cause="asked")
    for verdict in verdicts(*containers):
        assert (verdict["by"], verdict["code"]) == ("stall", 124)
    found = it.summary()
    assert found["first_failure"]["what"] == "stalled" and "--stall-timeout" in found["end"]["message"]
    stacks = (it.runs / RUN / "stacks.txt").read_text()
    assert [stacks.count(f"{host} rank {rank}: f") for host, rank in (("a", 0), ("a", 1), ("b", 2), ("b", 3))] == [
        1
    ] * 4


def test_where_ranks_stand_that_may_wait_for_one_that_is_done(meet: Meet) -> None:
    """A minute after it has ended well; nothing is ended for that."""
    it = meet(2)
    first, second = it.all("a", "b")
    first.rank(0)
    it.pass_time(64.0, first, second)
    assert it.kinds().count("advice") == 1
    for rank, each in ((1, first), (2, second), (3, second)):
        each.line.send(event="stacks", rank=rank, at="f (t.py:1)", frames="    f (t.py:1)\n")
    until(lambda: (it.runs / RUN / "stacks.txt").exists())
    assert (it.runs / RUN / "stacks.txt").read_text().count("f (t.py:1)\n    f") == 3
    first.rank(1)
    first.exit()
    second.end()
    assert {verdict["by"] for verdict in verdicts(first, second)} == {"done"}
