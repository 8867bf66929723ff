"""`fleet runs`: the runs that have a folder here, how each ended, and the end of old ones."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import fleet
from fleet.cli.main import run
from fleet.errors import UsageError
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.local import prune
from tests.in_process import command_line
from tests.moments import just_before
from tests.run_folders import Leader, an_id, leads, run_folder

DAY = 86400.0


def states(runs_dir: Path) -> dict[str, str]:
    return {each.run: each.state for each in fleet.runs(runs_dir)}


def old(runs_dir: Path, *options: str) -> list[str]:
    """What --prune with these options would take away."""
    words = ["--json", "--dry-run", "runs", "--runs-dir", str(runs_dir), "--prune", *options]
    return [str(each) for each in command_line(words, None).document()["pruned"]]


def ended(runs_dir: Path, name: str, started: float, **summary: Any) -> Path:
    return run_folder(runs_dir, an_id(name), plan={"started": started, "engine": "torchrun"}, summary=summary)


def test_old_runs_of_this_machine_go_but_for_the_newest(tmp_path: Path) -> None:
    begun = time.time() - DAY * 9
    for number, code in enumerate([0, 1, 130]):
        ended(tmp_path, f"r{number}", begun + number * DAY, exit_code=code)
    run_folder(tmp_path, an_id("r3"), plan={"started": begun + 3 * DAY})
    r0, r1, r2, r3 = (an_id(f"r{number}") for number in range(4))
    assert list(states(tmp_path).items()) == [(r3, "open"), (r2, "stopped"), (r1, "failed"), (r0, "done")]
    (tmp_path / r2 / "summary.json").write_text('{"exit_code": 130, "first_failure": {"rank": 0}}')
    assert states(tmp_path)[r2] == "failed", "its rank exited so, nobody stopped it"
    assert old(tmp_path, "--keep", "1") == [r1, r0], "one that is not over is not old"
    assert old(tmp_path, "--keep", "0", "--days", "8.5") == [r0]
    size = {each.run: each.size for each in fleet.runs(tmp_path)}
    for room, gone in (
        (sum(size.values()), []),
        (sum(size.values()) - 1, [r0]),
        (size[r3] + size[r2], [r1, r0]),
        (0, [r2, r1, r0]),
    ):
        assert old(tmp_path, "--keep", "0", "--max-size", str(room)) == gone
    assert old(tmp_path, "--keep", "2", "--max-size", "0") == [r0]


def test_a_run_that_is_followed_is_not_taken_away(tmp_path: Path) -> None:
    folder = ended(tmp_path, "r0", time.time() - DAY, exit_code=0)
    folder.chmod(0o500)
    assert states(tmp_path) == {an_id("r0"): "done"} and not (folder / ".lock").exists(), "who looks writes nothing"
    folder.chmod(0o700)
    with Leader(folder):
        assert states(tmp_path) == {an_id("r0"): "followed"} and old(tmp_path, "--keep", "0") == []
        assert fleet.runs(tmp_path, prune=True, keep=0) == []
    leaders = list[Leader]()
    followed = just_before("open", folder / ".lock", lambda: leaders.append(Leader(folder)))
    with followed, pytest.raises(UsageError, match="a process follows it just now"):
        fleet.runs(tmp_path, prune=True, keep=0)
    leaders.pop().release()
    assert [each.run for each in fleet.runs(tmp_path, prune=True, keep=0)] == [an_id("r0")] and not folder.exists()


def test_a_run_that_is_still_stopped_is_not_taken_away(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Who waits for its host would write to a folder that is gone, or make it again."""
    folder = ended(tmp_path, "r0", time.time() - DAY, exit_code=1)
    (seen,) = fleet.runs(tmp_path)
    RunFolder(folder).set_stopping(["gpu1", "gpu2"])
    assert old(tmp_path, "--keep", "0") == [] and fleet.runs(tmp_path)[0].stopping == ["gpu1", "gpu2"]
    assert run(["runs", "--runs-dir", str(tmp_path)]) == 0
    assert "failed, still stopped on gpu[1-2]" in capfd.readouterr().out
    with pytest.raises(UsageError, match="still stops it") as refused:
        prune(seen)
    assert refused.value.hint == f"fleet forget {folder.name}" and (folder / "summary.json").exists()
    RunFolder(folder).set_stopping([])
    assert old(tmp_path, "--keep", "0") == [folder.name]


def test_two_that_stop_a_run_on_different_hosts_are_both_known(tmp_path: Path) -> None:
    """Whoever is done first leaves the other one on record."""
    folder = RunFolder(ended(tmp_path, "r0", time.time() - DAY, exit_code=1))
    folder.set_stopping(["gpu1"])
    other = threading.Thread(target=lambda: (folder.set_stopping(["gpu2"]), folder.set_stopping([])))
    other.start()
    other.join()
    assert fleet.runs(tmp_path)[0].stopping == ["gpu1"]
    folder.set_stopping([])
    assert fleet.runs(tmp_path)[0].stopping == [] and not (folder.path / "state.json").exists()


@pytest.mark.parametrize("moment", ["state.json", "run.json", "summary.json"])
def test_a_run_that_ends_while_it_is_looked_at_is_not_open(moment: str, tmp_path: Path) -> None:
    """Who follows it writes its summary and lets go, before what tells of it was read or after."""
    folder = run_folder(tmp_path, an_id("r"), plan={"started": 1.0})
    leader = Leader(folder)

    def end() -> None:
        (folder / "summary.json").write_text('{"exit_code": 0}')
        leader.release()

    with just_before("open", folder / moment, end):
        assert states(tmp_path)[folder.name] in ("followed", "done")
    assert states(tmp_path)[folder.name] == "done"


def test_what_goes_while_runs_are_looked_at_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A whole run, which is pruned; the logs of an attempt, which are set aside; a document's next version."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("h\n")
    stays = ended(tmp_path / "runs", "stays", 1.0, exit_code=0)
    for name, *words in (["state.json", "runs"], ["run.json", "logs", "stays"], ["state.json", "hosts"]):
        goes = run_folder(tmp_path / "runs", an_id("goes"), plan={})
        leads(goes, start=1)  # no more
        with just_before("open", goes / name, lambda folder=goes: shutil.rmtree(folder)):
            run(words, typed=True)
        assert "goes" not in "".join(capfd.readouterr())
    (stays / "h").mkdir()
    with just_before("os.scandir", stays / "h", (stays / "h").rmdir):
        assert states(tmp_path / "runs") == {stays.name: "done"}

    def write() -> None:
        for _ in range(200):
            (stays / "summary.json.new").write_text('{"exit_code": 0}')
            (stays / "summary.json.new").rename(stays / "summary.json")

    head = threading.Thread(target=write)
    head.start()
    while head.is_alive():
        assert states(tmp_path / "runs") == {stays.name: "done"}
    head.join()


def test_the_engine_of_a_run_that_has_no_document_is_that_of_its_events(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shape = {"world_size": 1, "first_ranks": {}, "logs": "", "state": "", "started": 1.0, "lease": None}
    for name, engine in (("other", "accelerate"), ("unknown", None)):
        run_folder(tmp_path, an_id(name), events=[{"event": "attached", "engine": engine, **shape}])
    engines = {each.run: each.engine for each in fleet.runs(tmp_path)}
    assert engines == {an_id("other"): "accelerate", an_id("unknown"): None}
    assert run(["runs", "--runs-dir", str(tmp_path)]) == 0
    told = capfd.readouterr().out
    assert "accelerate" in told and "?" not in told, told


def test_a_program_prunes_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        ended(tmp_path, f"r{number}", float(number), exit_code=0)
    assert [each.run for each in fleet.runs(tmp_path)] == [an_id("r2"), an_id("r1"), an_id("r0")]
    assert [each.run for each in fleet.runs(tmp_path, prune=True, keep=2)] == [an_id("r0")]
    assert run(["runs", "--runs-dir", str(tmp_path), "--prune", "--keep", "0", "--max-size", "1TB", "-y"]) == 0
    assert len(fleet.runs(tmp_path)) == 2 and run(["runs", "--max-size", "big"]) == 2
    chosen = ["--keep", "0", "--days", "0.5", "--max-size", "1", "--runs-dir", str(tmp_path)]
    assert run(["runs", "--prune", *chosen]) == 2  # what is to be typed lets go no more than was asked for
    assert f"hint: --dry-run only looks; fleet runs --prune -y {' '.join(chosen)}" in capfd.readouterr().err
    assert run(["runs", "--runs-dir", str(tmp_path), "--prune", "--keep", "0", "--max-size", "1", "-y"]) == 0
    assert "removed: the logs of 2 runs" in capfd.readouterr().err
    assert fleet.runs(tmp_path) == []


def test_a_run_that_cannot_be_removed_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lock = ended(tmp_path, "r", 1.0, exit_code=0) / ".lock"
    lock.mkdir()  # as in a folder that cannot be written, for root too
    assert run(["runs", "--runs-dir", str(tmp_path), "--prune", "--keep", "0", "-y"]) == 2
    assert capfd.readouterr().err.splitlines()[-1] == f"error: {lock}: Is a directory"


def test_a_broken_document_of_a_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = {"incomplete_logs": [], "exit_code": 0}
    folder = run_folder(Path("runs"), an_id("t"), events=["running"], summary=whole, logs={"gpu1/rank0.out": "one\n"})
    (tmp_path / "hostfile").write_text("gpu1\n")
    assert run(["runs"]) == run(["logs", "t"]) == 0 and not capfd.readouterr().err, "it was started elsewhere"
    (folder / "run.json").write_text('{"engine": ')
    wrong = f"runs/{folder.name}/run.json cannot be read: Expecting value: line 1 column 12 (char 11)"
    for words in (["runs"], ["logs", "t"]):
        code, told = run(words), capfd.readouterr()
        assert code == 0 and told.err == f"warning: run {folder.name}: {wrong}\n", told
    assert [each.broken for each in fleet.runs()] == [wrong]
    (folder / "run.json").unlink()
    (folder / "summary.json").write_text("[]")
    assert run(["runs"]) == 0 and "summary.json cannot be read: it holds no JSON object" in capfd.readouterr().err
