"""Stopping a run, whatever state it is in."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
from glob import glob
from pathlib import Path
from typing import Any

import pytest

from fleet.node.base import processes, run_folder
from fleet.node.base.processes import read_file
from fleet.node.run import stop as stop_program
from fleet.node.run.start.ending import RECORD_GRACE
from tests.clock import HandClock
from tests.node.hanging import dead_mount
from tests.node.nodes import (
    alive,
    another,
    answer,
    final,
    folder_of,
    marked,
    ranks_argv,
    read_json,
    supervise_spec,
    until,
)

MASTER = {"address": "127.0.0.1", "port": 0, "token": "00", "is_me": True, "peers": 0}

PREFLIGHT = {"python": None, "activate": None, "env": {}, "workdir": None, "deadline": 1.0, "master": MASTER}


def start(home: Path, run: str, argv: list[Any], **changes: Any) -> dict[str, Any]:
    assert answer("run.supervise", supervise_spec(run, argv, **changes), home)["event"] == "started"
    return read_json(folder_of(home, run) / "pid")


def stop(home: Path, run: str, grace: float = 0.5) -> dict[str, Any]:
    return answer("run.stop", {"run": run, "grace": grace, "reason": "asked"}, home)


def test_a_running_run(home: Path, run: str) -> None:
    start(home, run, ranks_argv("trap '' TERM; while :; do sleep 0.1; done"))
    assert stop(home, run) == {"event": "stopped", "left": [], "was": "running"}
    status = final(home, run)
    assert (status["state"], status["reason"]) == ("stopped", "asked")
    assert not marked(run)
    assert stop(home, run)["was"] == "gone"


def test_a_run_that_ended_keeps_its_end(home: Path, run: str) -> None:
    start(home, run, ["sh", "-c", "exit 3"])
    final(home, run)
    assert stop(home, run)["was"] == "gone"
    assert final(home, run)["engine_status"] == 3


def test_a_run_that_ends_before_it_is_asked_keeps_its_end(
    home: Path, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(home, run, ["sh", "-c", f"until [ -e {home}/go ]; do sleep 0.1; done; exit 3"])
    monkeypatch.setenv("HOME", str(home))
    look = run_folder.live_supervisors

    def owners(folder: str) -> list[dict[str, Any]]:
        """Those that are left when this program, on a node with much to do, comes to look."""
        (home / "go").touch()
        until(lambda: not look(folder))
        return []

    monkeypatch.setattr(stop_program, "live_supervisors", owners)
    assert stop_program.stop({"run": run, "grace": 0.5, "reason": "asked"})[0] == []
    assert (final(home, run)["state"], final(home, run)["engine_status"]) == ("exited", 3)


@pytest.mark.parametrize(
    ("state", "late", "waited"),
    [("stopping", 12.0, True), ("stopping", 14.0, False), ("running", 4.0, True), ("running", 6.0, False)],
)
def test_a_supervisor_that_ends_the_run_is_waited_for(state: str, late: float, waited: bool, tmp_path: Path) -> None:
    """What is slow to die, be it for want of memory, is so for who would end it in its place."""
    run_folder.write_json(str(tmp_path / "pid"), {**processes.identity(os.getpid()), "boot": processes.boot_id()})
    run_folder.write_json(str(tmp_path / "status.json"), {"state": state})
    clock, last = HandClock(least=0.5), run_folder.final_status("stopped", "asked", [])
    clock.at(clock.now + late, lambda: run_folder.write_final(str(tmp_path), last))
    assert stop_program.ask(str(tmp_path), 0.0, "asked", None, clock) is waited


def test_a_run_that_comes_late_is_refused(home: Path, run: str) -> None:
    assert stop(home, run) == {"event": "stopped", "left": [], "was": "unknown"}
    said = answer("run.supervise", supervise_spec(run, ["touch", str(home / "ran")]), home)
    assert said["event"] == "failed" and "stopped before it began" in said["message"]
    assert not (home / "ran").exists()
    assert answer("run.supervise", supervise_spec(another(run), ["true"]), home)["event"] == "started", "only that run"


def test_what_was_stopped_for_good_stays_forbidden(home: Path, run: str) -> None:
    """Its head, which stops the attempt that it began, knows less."""
    stop(home, run)
    answer("run.stop", {"run": run, "grace": 0, "reason": "a node is lost", "attempt": 0}, home)
    said = answer("run.supervise", supervise_spec(run, ["true"], about={"attempt": 1}), home)
    assert said["event"] == "failed" and said["forbidden"], said


def test_a_tombstone_is_never_seen_half_written(home: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a number forbids more than one with it."""
    monkeypatch.setenv("HOME", str(home))
    folder, seen = home / ".fleet/runs", []

    class Slow(io.StringIO):
        def close(self) -> None:
            seen.append([path.name for path in folder.glob("*.stop")])
            super().close()

    monkeypatch.setattr(stop_program, "open", lambda path, _mode: Path(path).touch() or Slow(), raising=False)
    stop_program.forbid(run, 0)
    assert seen == [[]] and len(list(folder.glob("*.stop"))) == 1


def test_what_another_stop_clears_away_is_no_failure(home: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    names = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [*names(path), f"gone@{run_folder.NODE}.stop"])
    stop_program.forbid(run, None)
    assert run_folder.is_forbidden(run, 7)


def test_old_tombstones_are_cleared_away(home: Path, run: str) -> None:
    stop(home, run)
    (tombstone,) = (home / ".fleet/runs").iterdir()
    os.utime(tombstone, (1, 1))
    stop(home, another(run))
    assert [p.name.startswith(another(run) + "@") for p in (home / ".fleet/runs").iterdir()] == [True]


def test_with_supervisor_and_guardian_dead(home: Path, run: str) -> None:
    record = start(home, run, ranks_argv("trap '' TERM; touch ~/up; while :; do sleep 0.1; done"))
    until((home / "up").exists)
    os.kill(record["guardian"]["pid"], signal.SIGKILL)
    os.kill(record["pid"], signal.SIGKILL)
    assert stop(home, run) == {"event": "stopped", "left": [], "was": "running"}
    assert not marked(run)
    assert (final(home, run)["state"], final(home, run)["cause"]) == ("lost", "supervisor")


HIDDEN = (
    "import os, signal, sys, time\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "if os.fork(): os._exit(0)\n"
    "os.closerange(0, 100)\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    "for left in range(5000):\n"  # a new process every so often: the one that was seen is gone
    "    if os.fork(): os._exit(0)\n"
    "    time.sleep(0.2)\n"
    "    open(sys.argv[1], 'w').write(str(os.getpid()))\n"
)


def test_with_both_dead_a_daemon_that_no_process_and_no_variable_leads_to(home: Path, run: str) -> None:
    hidden = Path(f"/dev/shm/{run}")  # a busy disk would hold it in the kernel
    daemon = f'env -i {sys.executable} -c "$CODE" {hidden}; sleep 1000'
    record = start(home, run, ranks_argv(daemon), env={"CODE": HIDDEN})
    until(hidden.exists)
    for pid in (record["guardian"]["pid"], record["pid"]):
        os.kill(pid, signal.SIGKILL)
    before = hidden.read_text()
    until(lambda: hidden.read_text() != before)
    assert stop(home, run, 0.2) == {"event": "stopped", "left": [], "was": "running"}
    assert not any(str(hidden).encode() in line for line in map(read_file, glob("/proc/[0-9]*/cmdline")))
    hidden.unlink()


def test_with_a_supervisor_that_hangs(home: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = f"setsid env -i sh -c 'echo $$ > {home}/hidden; exec sleep 1000' & sleep 1000"
    record = start(home, run, ranks_argv(hidden))
    pid = int(until(lambda: (home / "hidden").exists() and (home / "hidden").read_text()))
    os.kill(record["pid"], signal.SIGSTOP)
    monkeypatch.setenv("HOME", str(home))
    clock = HandClock(least=0.5, holds=lambda: not alive(record["pid"]) and bool(marked(run)))
    assert stop_program.stopped({"run": run, "grace": 0.0, "reason": "asked"}, clock) == {
        "event": "stopped",
        "left": [],
        "was": "running",
    }
    assert not marked(run) and final(home, run)["state"] == "stopped"
    until(lambda: not alive(pid) and not alive(record["pid"]))


def test_what_hangs_in_the_kernel_is_told_now_and_before_the_next_run(
    home: Path, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dead").mkdir()
    with dead_mount(tmp_path / "dead") as (path, taken):
        record = start(home, run, ranks_argv(f"echo $$ > {home}/pid; exec cat {path}"))
        pid = int(until(lambda: (home / "pid").exists() and (home / "pid").read_text()))
        assert taken.wait(60)
        until(lambda: "request_wait" in Path(f"/proc/{pid}/wchan").read_text())
        for who in (record["guardian"]["pid"], record["pid"]):
            os.kill(who, signal.SIGKILL)
        until(lambda: not run_folder.live_supervisors(str(folder_of(home, run))))
        monkeypatch.setenv("HOME", str(home))
        clock = HandClock(0.0, lambda: clock.now > RECORD_GRACE + 2.0 and marked(run) != [pid], least=1.0)
        said = stop_program.stopped({"run": run, "grace": 0.0, "reason": "asked"}, clock)
        assert (said["left"], said["stuck"]) == ([pid], [f"{pid} (cat) hangs in the kernel, in request_wait_answer"])
        assert final(home, run)["stuck"] == said["stuck"]
        told = answer("preflight.probe", PREFLIGHT, home)["facts"]["remains"]
        assert told == [{"run": run, "ended": False, "left": said["stuck"]}]
    until(lambda: not alive(pid))
    assert answer("preflight.probe", PREFLIGHT, home)["facts"]["remains"] == []


def test_the_next_run_ends_one_that_nobody_keeps(home: Path, run: str) -> None:
    record = start(home, run, ranks_argv("exec sleep 1000"))
    assert answer("preflight.probe", PREFLIGHT, home)["facts"]["remains"] == []
    for pid in (record["guardian"]["pid"], record["pid"]):
        os.kill(pid, signal.SIGKILL)
    assert answer("preflight.probe", {**PREFLIGHT, "master": None}, home)["facts"]["remains"] == [] and marked(run)
    assert answer("preflight.probe", PREFLIGHT, home)["facts"]["remains"] == [{"run": run, "ended": True, "left": []}]
    assert not marked(run) and final(home, run)["cause"] == "supervisor"


@pytest.mark.parametrize("guardian", ["me", 7, {"pid": "1", "start": 1}, {"pid": 1}], ids=str)
def test_what_makes_no_sense_keeps_no_run_from_its_start(home: Path, guardian: Any) -> None:
    folder = home / ".fleet/runs/odd"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"run": "odd", "node": run_folder.NODE}))
    (folder / "pid").write_text(json.dumps({"boot": processes.boot_id(), "guardian": guardian}))
    assert answer("preflight.probe", PREFLIGHT, home)["facts"]["remains"] == []


def test_a_copy_of_a_folder_is_no_run(home: Path, run: str) -> None:
    record = start(home, run, ranks_argv("exec sleep 1000"))
    copy = folder_of(home, run).with_name("a-copy")
    shutil.copytree(folder_of(home, run), copy)
    (copy / "pid").write_text(json.dumps({**record, "pid": 0, "guardian": None}))
    assert answer("preflight.probe", PREFLIGHT, home)["facts"]["remains"] == [] and marked(run)


def test_an_attempt_that_begins_just_now_is_not_ended(home: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start(home, run, ranks_argv("exec sleep 1000"))
    until(lambda: marked(run))
    monkeypatch.setenv("HOME", str(home))
    look, seen = run_folder.live_supervisors, []

    def owners(folder: str) -> list[dict[str, Any]]:
        """Those of the attempt before at the first look."""
        seen.append(folder)
        return look(folder) if len(seen) > 1 else []

    monkeypatch.setattr(run_folder, "live_supervisors", owners)
    assert stop_program.remains() == [] and marked(run)


def test_what_is_no_run_id(home: Path) -> None:
    assert stop(home, "../../etc")["event"] == "failed"
