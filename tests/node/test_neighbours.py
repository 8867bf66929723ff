"""Two runs that want the same node for themselves do not both start on it, however close they come."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fleet.codec import decode
from fleet.protocol.messages.run import Neighbours
from tests.node.nodes import another, answer, folder_of, ranks_argv, read_json, supervise_spec, until
from tests.node.test_list_runs import ABOUT, runs


def start(run: str, home: Path, line: str = "exec sleep 1000", **changes: Any) -> dict[str, Any]:
    given = {"alone": True, "devices": None, "about": ABOUT, **changes}
    return answer("run.supervise", supervise_spec(run, ranks_argv(line), **given), home)


def stop(run: str, home: Path) -> None:
    assert answer("run.stop", {"run": run, "grace": 1.0, "reason": "x"}, home)["left"] == []


@pytest.mark.parametrize(
    "first, second, said",
    [
        ({}, {}, "neighbours"),
        ({}, {"alone": False}, "started"),
        ({"devices": [0, 1]}, {"devices": [2]}, "started"),
        ({"devices": [0, 1]}, {"devices": [1]}, "neighbours"),
    ],
)
def test_who_comes_second_is_refused(
    run: str, home: Path, first: dict[str, Any], second: dict[str, Any], said: str
) -> None:
    other, younger = another(run), {**ABOUT, "started": 2.0}
    assert start(run, home, **first)["event"] == "started"
    try:
        told = start(other, home, about=younger, **second)
        assert told["event"] == said, told
        if said == "neighbours":
            assert decode(Neighbours, told)["runs"] == [{"run": run, "about": ABOUT, "devices": first.get("devices")}]
            assert read_json(folder_of(home, other) / "status.json")["state"] == "stopped" and runs(home) == [run]
        there = answer("run.neighbours", {"run": other, "devices": second.get("devices")}, home)["runs"]
        assert [it["run"] for it in there] == ([run] if second.get("devices") != [2] else [])
    finally:
        stop(other, home)
        stop(run, home)


def test_the_older_one_waits_until_a_younger_one_has_gone(run: str, home: Path) -> None:
    """That was turned away on another node, where it came second."""
    assert start(another(run), home, "exec sleep 0.5", about={**ABOUT, "started": 2.0})["event"] == "started"
    told = start(run, home)
    assert told["event"] == "started", told
    until(lambda: runs(home) == [run])
    stop(run, home)


def test_of_two_at_once_one_starts(run: str, home: Path) -> None:
    said: dict[str, str] = {}

    def begin(name: str, started: float) -> None:
        said[name] = start(name, home, about={**ABOUT, "started": started})["event"]

    threads = [threading.Thread(target=begin, args=(another(run, n), float(n + 1))) for n in range(2)]
    try:
        for thread in threads:
            thread.start()
    finally:
        for thread in threads:
            thread.join()
        for name in said:
            stop(name, home)
    assert sorted(said.values()) == ["neighbours", "started"], said
