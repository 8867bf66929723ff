"""Logs of a run come to this machine: by another process of it, or from the nodes."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fleet.ops.run.follow.follow import FollowEnd, FollowEvent
from tests.in_process import Outcome, command_line
from tests.moments import just_before
from tests.run_folders import Leader, an_id, run_folder
from tests.scripted import Scripted, about, lists, part

RUN = an_id("r")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("a\n")
    return run_folder(tmp_path / "runs", RUN, plan={}, logs={"a/rank0.out": "one\n"})


def logs(*options: str) -> Outcome:
    return command_line(["logs", *options, RUN], Scripted({"a": {"list_runs": lists(part(RUN, about=about()))}}))


def test_logs_go_on_when_another_takes_a_run_over(folder: Path) -> None:
    leaders = [Leader(folder)]

    def write(text: str) -> None:
        with (folder / "a/rank0.out").open("a") as log:
            log.write(text)

    def take_over() -> None:
        leaders.append(Leader(folder))
        write("two\n")

    def end() -> None:
        write("three\n")
        (folder / "summary.json").write_text("{}")
        leaders.pop().release()

    # each look at the log is one of the process that shows it
    looks = {3: lambda: leaders.pop().release(), 5: take_over, 8: end}
    with ExitStack() as moments:
        for number, act in looks.items():
            moments.enter_context(just_before("open", folder / "a/rank0.out", act, number))
        done = logs("-f")
    assert (done.code, done.out) == (0, "[a:0] one\n[a:0] two\n[a:0] three\n"), done


def test_logs_that_no_process_brings_any_more_are_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.ops.run.find.logs.LEFT_SECONDS", 0.0)
    leader = Leader(folder)
    with just_before("open", folder / "a/rank0.out", leader.release, nth=3):
        done = logs("-f")
    assert (done.code, done.out) == (0, "[a:0] one\n"), done


class Full(threading.Thread):
    """Follows a run whose bytes this machine's disk does not take."""

    silent_since = None

    def __init__(self, host: Any, logs: object, how: Any, waiting: object) -> None:
        super().__init__()
        self.host, self.post = host, how.post

    def run(self) -> None:
        end = FollowEnd(False, blocked="No space left on device")
        self.post(FollowEvent(self.host.name, "over", end, 0.0))

    def give_up(self) -> None:
        pass


def test_a_run_that_its_node_has_no_more_is_not_complete(folder: Path) -> None:
    follow = [{"event": "failed", "message": "no such run", "hint": None}]
    nodes = Scripted({"a": {"list_runs": lists(part(RUN, about=about())), "follow": follow}})
    done = command_line(["logs", RUN], nodes)
    said = "error: host a: its logs are not complete here: no such run"
    assert done.code == 1 and done.err.strip() == said, done


def test_a_full_disk_here_is_why_logs_are_not_complete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.ops.run.follow.fetch.Follower", Full)
    done = logs()
    said = f"error: host a: its logs are not complete here: {folder}: No space left on device"
    assert done.code == 1 and " ".join(done.err.split()) == f"{said} hint: when there is room: fleet logs {RUN}", done
