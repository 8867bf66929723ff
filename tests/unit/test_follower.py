"""Who follows a node's part of a run: what comes from there, and what is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import ProtocolError
from fleet.ops.run.follow.follow import Follower, FollowEvent, FollowOptions
from fleet.ops.run.kept.logs import NodeLogs
from tests.hostile import HOST, PREAMBLE, Node, frame, sending
from tests.unit.conftest import Clock

SPEC: Any = {"run": "r", "offsets": {}}


def follow(folder: Path, node: Node, until: Callable[[FollowEvent], bool] = lambda heard: False) -> list[FollowEvent]:
    """Returns what is reported of that node; the follower is given up after the report that `until` names."""
    reports: list[FollowEvent] = []

    def post(heard: FollowEvent) -> None:
        reports.append(heard)
        if until(heard):
            follower.give_up()

    follower = Follower(HOST, NodeLogs(folder), FollowOptions(SPEC, node, post, lambda event: None, 15.0))
    follower.start()
    follower.join(300)
    assert not follower.is_alive()
    return reports


@pytest.mark.parametrize(
    "field",
    [
        {"rank": "0"},
        {"rank": None},
        {"rank": 0, "status": []},
        {"rank": 0, "signal": 10**400},
        {"rank": 0, "time": "x"},
        {"rank": 0, "time": float("nan")},
        {"rank": True},
        {"event": "status", "reason": "x" * 5000},
        {"event": "status", "disk_full": "x"},
        {"event": "status", "engine_status": "1"},
        {"event": "status", "left": 5},
        {"event": "status", "state": {}},
    ],
)
def test_what_a_node_says_of_its_ranks_is_checked(tmp_path: Path, field: dict[str, Any]) -> None:
    reports = follow(tmp_path, sending({"event": "rank", **field}), until=lambda heard: heard.kind == "dropped")
    assert [heard.kind for heard in reports] == ["dropped", "over"]


def test_a_node_that_only_talks_nonsense_is_given_up(tmp_path: Path) -> None:
    reports = follow(tmp_path, sending({"event": "rank", "rank": "zero"}))
    assert [heard.kind for heard in reports if heard.kind in ("broken", "over")] == ["broken", "over"]


def test_logs_of_a_run_that_is_not_there_are_not_complete(tmp_path: Path) -> None:
    (tmp_path / "rank0.out").write_text("what was here before\n")
    reports = follow(tmp_path, sending({"event": "failed", "message": "no such run", "hint": None}))
    assert [event.kind for event in reports] == ["message", "over"] and not reports[-1].data.complete


def test_a_flood_of_events_is_cut_off_and_told(tmp_path: Path) -> None:
    flood = sending(*[{"event": "status", "state": "running", "reason": "x" * 4000}] * 4_000)
    reports = follow(tmp_path, flood)
    (broken,) = [heard for heard in reports if heard.kind == "broken"]
    assert "reports more than" in str(broken.data)
    assert 500 < len([heard for heard in reports if heard.kind == "message"]) < 3_900


def test_a_node_that_is_lost_again_and_again_is_not_broken(tmp_path: Path) -> None:
    class Lost(Node):
        tries = 0

        def connect(self, host: Any, cancel: Any) -> Any:
            self.tries += 1
            if self.tries == 4:
                cancel.set()
            return self

    lost = Lost(PREAMBLE)
    reports = follow(tmp_path, lost)
    assert lost.tries == 4 and "broken" not in [heard.kind for heard in reports], reports


def test_a_busy_node_has_time_to_start_python_before_it_counts_as_silent(tmp_path: Path, clock: Clock) -> None:
    """A connection that says no more is given up after a third of --node-timeout; who begins has more."""

    class Slow(Node):
        def start(self, command: str) -> Any:
            channel = Slow(*self.output)
            channel._left = [b"".join(self.output)]  # type: ignore[attr-defined]
            return channel

        def recv(self, timeout: float) -> bytes:
            clock.now += timeout
            return super().recv(timeout) if clock.now > 108.0 else None  # type: ignore[return-value]

    heard: list[FollowEvent] = []
    node = Slow(*sending({"event": "end", "sizes": {}}).output)
    Follower(HOST, NodeLogs(tmp_path), FollowOptions(SPEC, node, heard.append, lambda event: None, 15.0)).run()
    assert [h.kind for h in heard] == ["over"] and heard[0].data.complete


def test_who_was_given_up_writes_no_more(tmp_path: Path) -> None:
    """Its files may be another one's by then: an attempt's, a leader's."""
    stream = frame(b"J", json.dumps({"event": "stream", "id": 1, "name": "rank0.out", "offset": 0}).encode())
    node = Node(PREAMBLE + stream + frame(b"O", b"mine", 1) + frame(b"O", b"another's", 1))
    how = FollowOptions(SPEC, node, emit=lambda event: follower.give_up(), node_timeout=15.0)
    follower = Follower(HOST, NodeLogs(tmp_path), how)
    follower.run()
    assert (tmp_path / "rank0.out").read_bytes() == b"mine"


def test_logs_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.ops.run.kept.logs.MAX_LOGS", 2)
    files = NodeLogs(tmp_path)
    for rank in range(2):
        files.write(f"rank{rank}.out", 0, b"x")
    with pytest.raises(ProtocolError):
        files.write("rank2.out", 0, b"x")
    with pytest.raises(ProtocolError):
        files.write("rank0.out", -5, b"x")
