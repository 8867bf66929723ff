"""A folder of runs that somebody handed over: whatever its files are, verbs end soon, read no other file and name no
folder elsewhere."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from fleet.cli.main import run
from fleet.node.base.processes import lives, myself
from fleet.ops.run.kept.local import local_runs, passed_over
from tests.in_process import command_line
from tests.run_folders import Leader, an_id, leads, run_folder
from tests.scripted import STOPPED, Scripted, about, ends, lists, part

RUN = an_id("r")
SECRET = "a secret of the machine's"


def deep(path: Path) -> None:
    path.write_text("[" * 200_000 + "\n")


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


def elsewhere(path: Path) -> None:
    secret = path.parents[2] / "secret"
    secret.write_text(json.dumps({"exit_code": 0, "started": 1.0, "engine": SECRET}) + "\n" + SECRET + "\n")
    path.symlink_to(secret)


KINDS = {"deep": deep, "pipe": os.mkfifo, "endless": endless, "huge": huge, "link": elsewhere, "folder": Path.mkdir}
FILES = ("events.jsonl", "run.json", "summary.json", ".lock", ".attempt", "h/rank0.out", "job.out", "stacks.txt")
# a log is shown, however long it is
CELLS = [(kind, name) for kind in KINDS for name in FILES if kind != "huge" or not name.endswith(".out")]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind, name", CELLS)
def test_no_file_of_a_run_is_more_than_a_file(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "hostfile").write_text("127.0.0.1 port=1\n")
    well = run_folder(tmp_path / "runs", an_id("well"), plan={"started": 1.0}, summary={"exit_code": 0})
    odd = run_folder(tmp_path / "runs", an_id("odd"), plan={"started": 2.0}, logs={"h/rank1.out": "a line\n"})
    (odd / name).unlink(missing_ok=True)
    KINDS[kind](odd / name)
    for line in ("runs", "runs --prune --yes --keep 0 --days 0", f"logs {odd.name}", "hosts"):
        code = run(line.split())
        out, err = capfd.readouterr()
        assert "Traceback" not in err and "secret" not in out, (line, err)
        assert code != 125, (line, err)
    assert not well.exists(), "another run's files are in no run's way"


def test_when_lines_were_written_is_asked_of_nodes_that_do_not_know_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "hostfile").write_text("127.0.0.1\n")
    run_folder(tmp_path / "runs", an_id("old"), plan={"started": 1.0}, logs={"127.0.0.1/rank0.out": "a line\n"})
    assert run(["--transport", "local", "logs", "old", "--since", "5m"]) == 2
    assert "is known to its nodes alone" in capfd.readouterr().err


@pytest.mark.parametrize("odd", [[], {}, 5, ["x"], True])
def test_what_a_run_tells_of_itself_may_be_of_any_type(
    odd: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    fields = ("run", "engine", "started", "hosts", "exit_code", "first_failure", "unknown", "lease", "platform")
    for field in fields:
        document = {"exit_code": 0, "started": 1.0, field: odd}
        run_folder(tmp_path / "runs", an_id(field.replace("_", "")), plan=document, summary=document)
    for line in ("runs", "runs --json", "runs --prune --yes --keep 0 --days 0"):
        assert run(line.split()) in (0, 1), (line, capfd.readouterr())


ODD = [[], {}, 5, ["x"], True, "x", "it's", {"a": 5}, [5, [[]], {"hosts": 5}], 1e400, 10**400, -(10**400)]


@pytest.mark.parametrize("field", ["hosts", "restarts", "end", "exit_code", "next", "incomplete_logs", "error"])
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:20])
def test_what_a_run_tells_of_its_end_may_be_of_any_type(
    odd: object, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("h\n")
    document = {"verb": "launch", "exit_code": 0, "run": RUN, "hosts": {}, "started": 1.0, field: odd}
    run_folder(tmp_path / "runs", RUN, plan=document, summary=document)
    known = {"a run that its nodes have pruned": lists(), "one of theirs": lists(part(RUN, "exited", about=about()))}
    for what, runs in known.items():
        node = {"list_runs": runs, "follow": ends(0), "stop": [{**STOPPED, "was": "gone"}]}
        for verb in ("attach", "stop"):
            done = command_line([verb, RUN], Scripted({"h": node}))
            assert "Traceback" not in done.err and done.code != 125, (what, verb, done)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:20])
def test_what_is_done_with_a_run_may_be_of_any_type(
    odd: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("h\n")
    folder = run_folder(tmp_path / "runs", RUN, plan={"started": 1.0})
    leads(folder, leader=None, lease=odd)
    assert run(["hosts"]) == 0 and run(["runs"]) == 0, capfd.readouterr()
    with Leader(folder):
        leads(folder, leader=odd)
        done = command_line(["attach", RUN], Scripted({"h": {"list_runs": lists(part(RUN, about=about()))}}))
        assert done.code == 2 and "follows" in done.err, done


@pytest.mark.parametrize("who", [{"pid": -1, "start": None}, {"pid": 1 << 30, "start": None}, {"pid": True}])
def test_a_leader_without_a_process_is_not_known(who: dict[str, object]) -> None:
    """It is neither alive, to be told to end, nor dead."""
    assert lives({**myself(), **who}) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder takes root")
def test_a_run_that_only_another_user_may_enter_is_passed_over() -> None:
    with tempfile.TemporaryDirectory() as base:
        os.chown(base, 65534, 65534)  # whose runs/ it is
        runs = Path(base, "runs")
        for name, uid in {"well": 65534, "theirs": 12345, "roots": 0}.items():
            folder = run_folder(runs, an_id(name), plan={"started": 1.0})
            for path in (runs, folder, *folder.iterdir()):
                os.chown(path, uid, -1)
        os.chown(runs, 65534, 65534)
        os.seteuid(65534)
        try:
            assert [found.run for found in local_runs(runs)] == [an_id("well")]
            assert sorted(passed_over(runs)) == [
                f"{runs / an_id('roots')} cannot be entered, and is passed over",
                f"{runs / an_id('theirs')} belongs to user id 12345, and is passed over",
            ]
        finally:
            os.seteuid(0)
