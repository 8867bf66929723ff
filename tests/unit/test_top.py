"""`fleet top`, by nodes that answer by a script: the table, what it says in words, hosts that do not answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.in_process import Outcome, command_line
from tests.scripted import Scripted, about, lists, part

RUN = "train-20260101-000000-0000"


def gpu(index: int, use: int | None, power: float | None, **more: Any) -> dict[str, Any]:
    state = {"memory": 70 * 10**9, "memory_total": 85 * 10**9, "temperature": 61, "clock": 1755, "throttle": []}
    whose = {"power_limit": 700.0, "runs": [], "others": 0}
    return {"index": index, "uuid": f"GPU-{index}", "use": use, "power": power, **state, **whose, **more}


def sample(*gpus: dict[str, Any], **more: Any) -> list[Any]:
    state = {"time": 1.0, "cpu": 12.0, "load": 3.5, "memory": 10**10, "memory_total": 5 * 10**11}
    net = {"net": {"eth0": [1.2e9, 800.0]}, "ib": {}, "runs": []}
    return [{"event": "sample", **state, **net, "gpus": list(gpus), **more}]


FREE = gpu(1, 0, 70.0, memory=5 * 10**8)
NODES = {
    "a": {"sample": sample(gpu(0, 100, 690.0, runs=[RUN], throttle=["heat"]), FREE)},
    "b": {"sample": sample(gpu(0, 100, 220.0, runs=[RUN]), gpu(1, None, None, throttle=None, others=2))},
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "hostfile").write_text("a\nb\n")


def top(*words: str, nodes: Any = NODES) -> Outcome:
    return command_line(["top", *words], Scripted(nodes))


def test_a_table_and_words() -> None:
    done = top()
    first, *lines = done.out.splitlines()
    assert done.code == 0 and first[10:] == "2 hosts, 4 GPUs 67% busy, 980W"
    assert lines == [
        "1 GPU free: a:1",
        "1 GPU busy at little power: b:0",
        "HOST  GPU   USE     POWER    MEMORY  TEMP  CLOCK  SLOWED BY  NET IN/OUT  CPU  LOAD       RAM  RUN",
        f"a       0  100%  690/700W   70G/85G   61C   1755  heat         1.2G/800  12%   3.5  10G/500G  {RUN}",
        "        1    0%   70/700W  500M/85G   61C   1755",
        f"b       0  100%  220/700W   70G/85G   61C   1755               1.2G/800  12%   3.5  10G/500G  {RUN}",
        "        1     ?         ?   70G/85G   61C   1755                                              2 of no run",
    ]


@pytest.mark.parametrize(("sort", "first"), [("host", "a"), ("temperature", "b"), ("load", "b"), ("network", "b")])
def test_hosts_are_sorted(sort: str, first: str) -> None:
    hot = {"sample": sample(gpu(0, 10, 90.0, temperature=80), load=9.0, net={"eth0": [5e9, None]})}
    rows = [
        line for line in top("--once", "--sort", sort, nodes={**NODES, "b": hot}).out.splitlines() if line[0] in "ab"
    ]
    assert rows[0].startswith(first)


def test_a_gpu_whose_processes_are_not_known_is_not_free() -> None:
    hidden = {"sample": sample(gpu(0, 0, 70.0, memory=5 * 10**8, others=None))}
    done = top("--once", nodes={"a": hidden, "b": hidden})
    assert done.code == 0 and "free" not in done.out and "of no run" not in done.out


def test_who_does_not_answer_is_shown() -> None:
    done = top("--once", nodes={"a": NODES["a"]})
    assert done.code == 122 and "no answer from b: " in done.out and "\na       0" in done.out
    odd = top("--once", nodes={**NODES, "b": {"sample": [{"event": "sample", "gpus": []}]}})
    assert odd.code and "no answer from b: " in odd.out


def test_a_narrow_terminal_goes_without_some_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = top().out.splitlines()
    assert max(map(len, lines[3:])) <= 80 and "POWER" in lines[3] and "RUN" in lines[3] and "LOAD" not in lines[3]


def test_one_document() -> None:
    done = top("--once", "--json")
    document = json.loads(done.out)
    assert (document["verb"], document["ok"], list(document["hosts"])) == ("top", True, ["a", "b"])
    host = document["hosts"]["a"]
    assert (host["free"], host["cold"], host["sample"]["gpus"][0]["power"]) == ([1], [], 690.0)


def test_a_run_limits_it_to_its_hosts() -> None:
    nodes = {
        "a": {**NODES["a"], "list_runs": lists(part(RUN, about=about()))},
        "b": {**NODES["b"], "list_runs": lists()},
    }
    done = top(RUN, "--once", nodes=nodes)
    assert done.code == 0 and "1 host, 2 GPUs" in done.out
    over = {name: {**node, "list_runs": lists(part(RUN, "exited", about=about()))} for name, node in nodes.items()}
    ended = top(RUN, "--once", nodes=over)
    assert ended.code == 2 and f"run {RUN} is over" in ended.err and f"fleet logs {RUN}" in ended.err


def test_what_a_node_sends_cannot_drive_the_terminal() -> None:
    evil = sample(gpu(0, 5, 5.0, throttle=["\x1b[2J", "x"]))
    assert "\x1b" not in top("--once", nodes={name: {"sample": evil} for name in "ab"}).out
