"""`fleet launch --notify`: a line for sh at a run's end, whoever leads it, and what is kept of it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from fleet.events import Event, Notice
from fleet.ops.run.end.notify import notify
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.reader import Onlooker
from fleet.requests.runs import Logs
from fleet.transport.base import Cancel
from tests.in_process import Outcome, command_line
from tests.run_folders import run_folder
from tests.scripted import Scripted, ends, well

SECRET = "curl -sd @- https://hooks.example.org/T0a1b2c3d4e5f6/x"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "hostfile").write_text("a\n")


def launch(line: str, *words: str, status: int = 0) -> Outcome:
    nodes = Scripted({"a": well(ends(0, status=status))})
    return command_line(["launch", "--engine", "command", "--notify", line, *words, "./t"], nodes)


def events() -> list[dict[str, object]]:
    return [json.loads(line) for line in Path("runs/latest/events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("status", [0, 3])
def test_it_has_the_summary_on_its_standard_input(status: int) -> None:
    done = launch("cat > got", status=status)
    assert done.code == status and "--notify" not in done.err, done.err
    assert json.loads(Path("got").read_text()) == json.loads(Path("runs/latest/summary.json").read_text())
    assert [event["exit_code"] for event in events() if event["event"] == "notified"] == [0]
    assert [event["attempt"] for event in events() if event["event"] == "notifies"] == [0]
    looked = list[Event]()
    Onlooker(Path("runs/latest").resolve(), Logs("latest"), looked.append).look()
    assert all(event.message for event in looked if isinstance(event, Notice)), "what is a mark alone is not shown"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("echo out; echo no mail server >&2; exit 4", "warning: --notify: exit code 4: no mail server"),
        ("kill -9 $$", "warning: --notify: killed by signal 9 (Killed)"),
        ("yes", "warning: --notify: it was ended, as it took 30 s or printed more than 1 MiB"),
        ("printf '\\033[31mred'; exit 1", "warning: --notify: exit code 1: \\x1b[31mred"),
        ("if", "warning: --notify: exit code 2: "),
    ],
)
def test_its_failure_is_a_warning_and_never_the_runs_end(line: str, said: str) -> None:
    done = launch(line)
    assert done.code == 0 and said in done.err, done.err
    assert json.loads(Path("runs/latest/summary.json").read_text())["exit_code"] == 0


def test_stdout_stays_json() -> None:
    done = launch("echo hello", "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert lines[-1]["event"] == "summary" and [line["event"] for line in lines].count("notified") == 1


def test_one_that_may_be_a_secret_is_kept_nowhere_and_needed_again() -> None:
    assert launch(SECRET.replace("curl", "true curl")).code == 0
    for path in Path("runs").rglob("*"):
        assert not path.is_file() or "hooks.example" not in path.read_text(errors="replace"), path
    again = command_line(["launch", "--again", "latest"], Scripted({"a": well(ends(0))}))
    assert again.code == 2 and "what may be secret is not kept, so give it again: --notify" in " ".join(
        again.err.split()
    )
    given = command_line(["launch", "--again", "latest", "--notify", "cat > got"], Scripted({"a": well(ends(0))}))
    assert given.code == 0 and Path("got").exists(), given.err


def test_again_starts_it_again() -> None:
    assert launch("echo x >> got").code == 0
    assert command_line(["launch", "--again", "latest"], Scripted({"a": well(ends(0))})).code == 0
    assert Path("got").read_text() == "x\nx\n"


def test_a_run_that_does_not_begin_starts_none() -> None:
    missing = {"script": {"path": "/w/t", "exists": False, "executable": False, "sha256": None}}
    words = ["launch", "--engine", "command", "--notify", "echo x > got", "./t"]
    assert command_line(words, Scripted({"a": well(**missing)})).code == 123 and not Path("got").exists()


@pytest.mark.parametrize("handed", [True, False])
def test_who_ends_a_run_for_its_dead_leader_starts_it_where_this_users_fleet_recorded_it(handed: bool) -> None:
    """A folder from elsewhere starts nothing, and neither does a node."""
    run = "t-20260101-000000-0000"
    plan = {
        "run": run,
        "engine": "command",
        "owner": "ada@head",
        "started": 1.0,
        "world_size": 1,
        "master": "h:1",
        "hosts": {"a": {"node_rank": 0, "ranks": [0]}},
        "launch": {"script": "./t", "notify": "echo x > got"},
    }
    run_folder(Path("runs"), run, plan=plan, handed=handed)
    done = command_line(["stop", run], Scripted({"a": {"list_runs": [{"event": "runs", "runs": []}]}}))
    assert Path("runs", run, "summary.json").exists(), done.err
    assert Path("got").exists() is not handed


@pytest.mark.parametrize("earlier", [True, False])
def test_a_line_that_a_killed_leader_had_started_is_not_started_again(earlier: bool) -> None:
    """One of an earlier attempt, as a queue's jobs are, does not count."""
    run = "t-20260101-000000-0000"
    plan = {"run": run, "engine": "command", "owner": "ada@head", "started": 1.0, "world_size": 1, "master": "h:1"}
    plan |= {"hosts": {"a": {"node_rank": 0, "ranks": [0]}}, "launch": {"script": "./t", "notify": "echo x > got"}}
    noted = {"event": "notifies", "time": 2.0, "attempt": -1 if earlier else 0}
    run_folder(Path("runs"), run, plan=plan, events=[noted])
    done = command_line(["stop", run], Scripted({"a": {"list_runs": [{"event": "runs", "runs": []}]}}))
    assert Path("runs", run, "summary.json").exists(), done.err
    assert Path("got").exists() is earlier


def test_a_process_that_leaves_its_group_with_its_output_open_is_not_waited_for() -> None:
    done = launch("setsid sleep 600 & echo $! > pid; echo here; exit 3")
    os.kill(int(Path("pid").read_text()), signal.SIGKILL)
    assert done.took < 300 and "--notify: exit code 3: here" in done.err, done


def test_the_users_wish_to_stop_ends_it_also_where_an_earlier_one_ended_the_run() -> None:
    cancel = Cancel()
    cancel.set()
    folder = RunFolder(run_folder(Path("runs"), "t-20260101-000000-0000"))
    timer = threading.Timer(0.5, cancel.set)
    timer.start()
    began = time.monotonic()
    notice = notify("sleep 600; echo x > got", {}, folder, cancel)
    assert time.monotonic() - began < 300 and notice.message == "--notify: it was interrupted"
    assert notify("exit 4", {}, folder, cancel).message == "--notify: exit code 4"
