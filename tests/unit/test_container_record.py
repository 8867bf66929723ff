"""What is written down of a run whose containers a platform starts: one record, as of any run, and the logs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fleet.node.container.part import answer_in
from fleet.node.container.record import Kept, Logs, check_runs
from tests.in_process import command_line
from tests.liar import PREAMBLE, frame
from tests.meetings import RUN, about, nobodys_summary
from tests.scripted import Scripted

HOSTS = {"a": {"node_rank": 0, "ranks": [0]}}


def test_who_shares_no_folder_writes_its_own(tmp_path: Path) -> None:
    leads, shares, apart = (Kept(str(tmp_path / name), RUN, about()) for name in ("x", "x", "y"))
    assert [it.begin(HOSTS, 1, "m") for it in (leads, shares, apart)] == [True, False, True]
    shares.end(nobodys_summary())
    assert not (tmp_path / "x" / RUN / "summary.json").exists()
    apart.end(nobodys_summary())
    for name, state in (("x", "followed"), ("y", "done")):
        (run,) = command_line(["--json", "runs", "--runs-dir", str(tmp_path / name)], None).document()["runs"]
        assert run["state"] == state
    leads.end(nobodys_summary())


def test_a_run_whose_leader_is_gone_is_open(tmp_path: Path) -> None:
    """Nobody is said to lead what no process leads."""
    leads = Kept(str(tmp_path), RUN, about())
    leads.begin(HOSTS, 1, "m")
    assert leads.held is not None
    os.close(leads.held)
    for seconds in (3600, 0):
        os.utime(tmp_path / RUN / "state.json", (time.time() - seconds,) * 2)
        (run,) = command_line(["--json", "runs", "--runs-dir", str(tmp_path)], None).document()["runs"]
        assert run["state"] not in ("done", "failed") and run["exit_code"] is None


def test_a_folder_of_runs_is_tried_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert check_runs(str(tmp_path / "new" / "runs")) is None
    assert check_runs(str(tmp_path / "file" / "runs")) == f"{tmp_path}/file is no folder"


def test_verbs_that_reach_no_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = Kept("runs", RUN, about())
    record.begin(HOSTS, 1, "m")
    (tmp_path / "runs" / RUN / "a").mkdir()
    (tmp_path / "runs" / RUN / "a" / "rank0.out").write_text("hello\n")
    for verb in ("stop", "attach", "stacks"):
        done = command_line([verb, "latest"], Scripted({}))
        text = " ".join(done.err.split())
        assert done.code == 121 and f"run {RUN} is of containers that a platform (aistation) started" in text, verb
    record.end(nobodys_summary())
    for words in (["logs", "latest"], ["logs", "-f", "t"]):
        done = command_line(words, Scripted({}))
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


def test_what_a_supervisor_answers() -> None:
    message = b'{"event": "started", "dir": "/a}b", "pid": 1}'
    frames = frame("H", 0, b"") + frame("J", 0, message) + frame("X", 0, b'{"exit_status": 0}')
    assert answer_in(b"motd {\n" + PREAMBLE + frames) == {"event": "started", "dir": "/a}b", "pid": 1}
    assert answer_in(b"") == answer_in(PREAMBLE) == answer_in(b"Traceback") == {}


def test_a_line_that_does_not_end_is_shown_in_pieces(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A progress bar holds no more than that in memory."""
    (tmp_path / "target").mkdir()
    logs, bar = Logs(str(tmp_path), str(tmp_path / "target"), "a"), b"\r  3%" * 20_000
    (tmp_path / "rank0.err").write_bytes(b"x\n" + bar)
    logs.bring()
    assert capfd.readouterr().err.splitlines()[0] == "[a:0] x" and not any(logs.rest.values())
    assert (tmp_path / "target" / "rank0.err").read_bytes() == b"x\n" + bar
