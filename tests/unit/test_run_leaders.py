"""One process writes to a run's folder: who leads it, who asks for it, who looks on meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

import fleet
from fleet.events import Event, Notice
from fleet.node.base.processes import myself
from fleet.node.gang.ends import run_end
from fleet.ops.run.kept.documents import written
from fleet.ops.run.kept.folder import RunFolder, led_already
from tests.in_process import Outcome, command_line, reached_by
from tests.leaders import holder
from tests.moments import just_before
from tests.run_folders import Leader, an_id, happen, leads, run_folder
from tests.scripted import STOPPED, Message, Scripted, Spec, about, lists, part

RUN = an_id("r")
HOLD = """
import sys
from pathlib import Path
from fleet.node.base.processes import myself
from fleet.ops.run.kept.folder import RunFolder, led_already
from fleet.ops.run.kept.documents import written
folder = RunFolder(Path(sys.argv[1]))
print(folder.hold(), flush=True)
folder.lead(None)
print(flush=True)
sys.stdin.read()
folder.release()
"""


def test_one_process_writes_to_a_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "r")
    assert folder.held and RunFolder.open(tmp_path / "runs", "r").held is False
    folder.release()
    argv = [sys.executable, "-c", HOLD, str(folder.path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdin
        assert other.stdout.readline() == "True\n"
        other.stdout.readline()
        assert folder.hold() is False and holder(folder.path) == other.pid
        other.stdin.close()
        assert folder.hold(120.0)
    folder.release()
    assert holder(folder.path) == 0, "no number that may be another process's"


# -- a file system without locks (Lustre without -o flock, some FUSE ones) -------------------------------------------
LOCKLESS = """
import errno, fcntl, os
flock = fcntl.flock
def lockless(file, how):
    name = os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
    if "/runs/" in name:
        raise OSError(errno.ENOLCK, "No locks available")
    flock(file, how)
fcntl.flock = lockless
"""


@pytest.fixture
def lockless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As flock() is there, for what is in runs/."""
    monkeypatch.setattr(fcntl, "flock", fcntl.flock)
    exec(LOCKLESS, {})


def held(runs: Path) -> subprocess.Popen[str]:
    """Returns a process that holds and leads that run, once it does."""
    argv = [sys.executable, "-c", LOCKLESS + HOLD, str(runs / RUN)]
    other = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout and [other.stdout.readline(), other.stdout.readline()] == ["True\n", "\n"]
    return other


def test_a_folder_without_locks_is_held_by_one_process(tmp_path: Path, lockless: None) -> None:
    run_folder(tmp_path / "runs", RUN)
    with held(tmp_path / "runs") as other:
        folder = RunFolder(tmp_path / "runs" / RUN)
        assert not folder.hold() and [run.state for run in fleet.runs(tmp_path / "runs")] == ["followed"]
        assert written(folder.path), "also to who only looks"
        other.kill()
        other.wait()
        assert not written(folder.path) and [run.state for run in fleet.runs(tmp_path / "runs")] == ["unattended"]
        assert folder.hold(), "it is dead, and known to be"
        assert not RunFolder(folder.path).hold()
        folder.release()
    assert {path.name for path in folder.path.iterdir()} == {".lock", ".made", "events.jsonl", "state.json"}


def test_a_folder_that_another_machine_holds_is_not_taken_from_it(tmp_path: Path, lockless: None) -> None:
    """Though a process of this machine with that number is none of it."""
    folder = RunFolder(run_folder(tmp_path / "runs", RUN))
    for who in ({**myself(), "machine": "login2", "start": 1}, None):
        (folder.path / ".lock.held").write_text(json.dumps(who))
        assert not folder.hold() and written(folder.path), who
    leads(folder.path, machine="login2")
    assert "where login2 is gone for good: rm " in (led_already(folder).hint or "")


def test_a_run_is_handed_over_without_locks(tmp_path: Path, lockless: None) -> None:
    folder = RunFolder.create(tmp_path / "runs", RUN)
    assert folder.lock is not None
    heir = RunFolder(folder.path)
    heir.take_over(os.dup(folder.lock))
    folder.let_go()
    assert not RunFolder(folder.path).hold()
    heir.release()
    assert RunFolder(folder.path).hold()


def test_two_launches_make_the_first_runs_folder_at_once(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with just_before("os.mkdir", runs, lambda: runs.mkdir(mode=0o700)):
        RunFolder.create(runs, RUN).release()


# -- a run that no node knows any more is ended here, by who leads its folder --------------------------------------
@pytest.fixture
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "hostfile").write_text("h\n")
    hosts = {"h": {"node_rank": 0, "ranks": [0]}}
    plan = {"engine": "command", "owner": "ada@head", "started": 1.0, "world_size": 1, "master": "h:1", "hosts": hosts}
    return run_folder(tmp_path / "runs", RUN, plan=plan)


def stop() -> Outcome:
    return command_line(["stop", RUN], Scripted({"h": {"list_runs": lists(), "stop": [{**STOPPED, "was": "unknown"}]}}))


@pytest.mark.parametrize("machine, said", [(gethostname(), "of this machine"), ("login2", "of login2")])
def test_who_follows_a_run_already_is_named_with_the_machine(machine: str, said: str, forgotten: Path) -> None:
    with Leader(forgotten, pid=4242, helper=machine == "login2", machine=machine):
        done = stop()
        assert done.code == 2 and f"process 4242 {said} follows {RUN} already" in done.err, done.err


def test_a_helper_that_ends_just_now_is_waited_for(forgotten: Path) -> None:
    """As the run is over: it is not there any more when it is told to end, its lock is a moment later."""
    helper = Leader(forgotten, pid=1 << 30, helper=True)
    with just_before("open", forgotten / ".lock", helper.release, nth=2):
        assert stop().code == 0
    assert json.loads((forgotten / "summary.json").read_text())["exit_code"] == 130
    assert holder(forgotten) == 0


def test_who_only_looks_whether_a_run_is_followed_follows_nothing(forgotten: Path) -> None:
    looks = Leader(forgotten, looks=True)
    with just_before("open", forgotten / ".lock", looks.release, nth=2):
        assert stop().code == 0
    assert (forgotten / "summary.json").exists()


def test_a_run_that_no_node_knows_ended_with_its_last_attempt(forgotten: Path) -> None:
    (forgotten / ".attempt").write_text("2")
    assert stop().code == 0
    summary = json.loads((forgotten / "summary.json").read_text())
    assert summary["attempt"] == summary["end"]["attempt"] == 2


# -- attaching to a run that is led, or over -----------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of a run on the host h, here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("h\n")
    return run_folder(tmp_path / "runs", RUN)


def attach(*reports: dict[str, Any], options: Sequence[str] = ()) -> Outcome:
    """fleet attach latest, where h gives these reports of the run, one each time it is asked."""
    left = [*reports]

    def report(spec: Spec) -> list[Message]:
        return lists(left.pop(0) if len(left) > 1 else left[0])

    return command_line([*options, "attach", "latest"], Scripted({"h": {"list_runs": report}}))


def test_who_looks_on_is_told_as_loudly_as_who_follows(folder: Path) -> None:
    happen(folder, {"event": "full", "level": "error", "message": "what was there before it began to look"})
    leader = Leader(folder)

    def go_on() -> None:
        happen(folder, {"event": "full", "level": "error", "message": "gpu1 is full", "host": "gpu1"})
        happen(folder, {"event": "alone", "level": "warning", "message": "all are silent"})
        happen(folder, {"event": "full", "message": "gpu2 is full"})
        (folder / "summary.json").write_text(json.dumps(report()))
        leader.release()

    shown = set[tuple[str, str]]()
    moments = ExitStack()

    def emit(event: Event) -> None:
        if not isinstance(event, Notice):
            return
        if event.data["event"] == "attached":  # what is there is read once, then what is new
            moments.enter_context(just_before("open", folder / "events.jsonl", go_on, nth=2))
        else:
            shown.add((event.message, event.level))

    with moments, reached_by(Scripted({"h": {"list_runs": lists(part(RUN, about=about()))}})):
        assert fleet.open("hostfile").plan.attach("latest").run(emit).exit_code == 122
    assert shown == {("gpu1 is full", "error"), ("all are silent", "warning"), ("gpu2 is full", "info")}, shown


LOST = run_end("lost", "b was lost", 122, "b")


def report(**changed: Any) -> dict[str, Any]:
    """What fleet launch writes of a run that lost its node b."""
    error = {"kind": "lost", "message": "silent for 15 s", "hint": "look there"}
    node = {"exit_status": None, "stdout": "", "stderr": "", "left": [], "undying": None}
    hosts = {
        "a": {**node, "ok": True, "exit_status": 0, "error": None, "state": "exited"},
        "b": {**node, "ok": False, "error": {**error, "host": "b"}, "state": "lost"},
    }
    failure = {"host": "b", "what": "node", "message": "b was lost"}
    return {
        "verb": "launch",
        "ok": False,
        "exit_code": 122,
        "run": RUN,
        "hosts": hosts,
        "first_failure": failure,
        "end": LOST,
        **changed,
    }


def test_who_attaches_to_a_run_that_is_over_is_told_what_its_head_saw(folder: Path) -> None:
    """Its nodes, of which one is gone, would tell that another one failed."""
    (folder / "summary.json").write_text(
        json.dumps(report(incomplete_logs=["b"], attempt=1, restarts=[{"attempt": 1}]))
    )
    before = (folder / "summary.json").read_text()
    done = attach(part(RUN, "stopped", cause="asked", reason="b was lost", verdict=LOST), options=["--json"])
    document = done.document()
    assert done.code == document["exit_code"] == 122 and document["first_failure"]["host"] == "b"
    assert (document["attempt"], document["restarts"]) == (1, [{"attempt": 1}])
    assert document["hosts"]["b"]["error"]["kind"] == "lost" and document["hosts"]["a"]["ok"]
    assert (folder / "summary.json").read_text() == before
    (said,) = [json.loads(line)["message"] for line in done.out.splitlines() if '"attached"' in line]
    assert said == f"run {RUN}: failed, 1 rank on 1 node, logs in runs/{RUN}", said


@pytest.mark.parametrize("word", ["latest", RUN])
def test_a_run_that_its_nodes_have_pruned_is_known_by_its_folder(word: str, folder: Path) -> None:
    (folder / "summary.json").write_text(json.dumps(report(incomplete_logs=["b"])))
    done = command_line(["attach", word], Scripted({"h": {"list_runs": lists()}}))
    assert done.code == 122 and "b was lost" in done.err, done
