"""The user's runs/ on the head: whose it must be, and what is left alone in it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from fleet.errors import FleetError, UsageError
from fleet.ops.run.kept.documents import reminders
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.local import local_runs, names, passed_over, prune
from tests.events import happened
from tests.in_process import typed as run

NEIGHBOUR = 12345
ID = "train-20260101-000000-abcd"
OTHER = "train-20260102-000000-abcd"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLEET_LAB_DIR", raising=False)
    return tmp_path


def a_run(runs: Path, name: str = ID, started: float = 1.0) -> Path:
    folder = RunFolder.create(runs, name)
    folder.event(happened("version"))
    folder.write_json("run.json", {"started": started})
    folder.write_json("summary.json", {"exit_code": 0, "hosts": {"gpu1": {}}})
    folder.release()
    return folder.path


def theirs(path: Path) -> None:
    os.chown(path, NEIGHBOUR, NEIGHBOUR, follow_symlinks=False)


# -- runs/ ---------------------------------------------------------------------------------------------
def test_what_is_made_is_the_users_alone(here: Path) -> None:
    a_run(here / "runs")
    for name in ("runs", f"runs/{ID}"):
        assert stat.S_IMODE((here / name).stat().st_mode) == 0o700
    assert (here / "runs/.gitignore").read_text().startswith("*\n")


@pytest.mark.parametrize("trick", ["theirs", "theirs, open", "open", "their link"])
def test_a_folder_that_another_user_made_is_refused_by_name(
    here: Path, trick: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """By who would write there, and by who would read what it says was launched."""
    real = here / ("elsewhere" if "link" in trick else "runs")
    a_run(real)
    if "link" in trick:
        (here / "runs").symlink_to(real)
    if "their" in trick:
        theirs(here / "runs")
    if "open" in trick:
        real.chmod(0o777)
    said = f"{here}/runs " + {"o": "can be written by every user", "t": "belongs to"}[trick[0]]
    said = f"{here}/runs is a link of user id {NEIGHBOUR}" if "link" in trick else said
    before = sorted(real.rglob("*"))
    for attempt in (
        lambda: RunFolder.create(here / "runs", OTHER),
        lambda: RunFolder.open(here / "runs", ID),
        lambda: local_runs(here / "runs"),
        lambda: names(here / "runs"),
        lambda: list(reminders(here / "runs")),
    ):
        with pytest.raises(UsageError) as refused:
            attempt()
        assert said in refused.value.message and "--runs-dir" in (refused.value.hint or "")
    assert sorted(real.rglob("*")) == before
    (here / "x.py").touch()
    (here / "hostfile").write_text("127.0.0.1\n")
    for words in (["runs"], ["launch", "--again", "latest"], ["logs", "latest"]):
        assert run(words) == 2 and f"error: {said}" in capfd.readouterr().err
    words = ["--transport", "local", "-i", "hostfile", "launch", "--sync", "--engine", "command", "python3", "x.py"]
    assert run(words) == 2
    told = capfd.readouterr().err
    assert f"error: {said}" in told and "sync:" not in told and "preflight:" not in told, "before anything is sent"


def test_a_link_of_the_users_own_and_a_group_that_shares_the_folder(here: Path) -> None:
    (here / "scratch").mkdir(mode=0o770)
    (here / "scratch").chmod(0o2775)
    (here / "runs").symlink_to("scratch")
    a_run(here / "runs")
    assert names(here / "runs") == [ID] and (here / "scratch" / ID).is_dir()


def test_root_in_a_users_folder_is_that_users_guest(here: Path) -> None:
    """As by sudo, or in a container: code and inventory are that user's there, too."""
    a_run(here / "runs")
    for path in (here, here / "runs", *(here / "runs").rglob("*")):
        theirs(path)
    assert [each.run for each in local_runs(here / "runs")] == [ID]
    RunFolder.open(here / "runs", ID).release()


def test_a_run_that_another_user_put_there_is_passed_over(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A sticky folder is open to all; what another user put into it is not what was launched here."""
    mine = a_run(here / "runs")
    (here / "runs").chmod(0o1777)
    planted = a_run(here / "runs", OTHER, 9e9)
    for path in (planted, *planted.iterdir()):
        theirs(path)
    third = here / "runs/train-20260103-000000-abcd"
    third.symlink_to(mine)
    assert names(here / "runs") == [ID]
    assert sorted(passed_over(here / "runs")) == [
        f"{planted} belongs to user id {NEIGHBOUR}, and is passed over",
        f"{third} is a link, and is passed over",
    ]
    assert run(["runs"]) == 0
    told = capfd.readouterr()
    assert told.out.count("train-") == 1 and f"warning: runs/{OTHER} belongs to user id {NEIGHBOUR}" in told.err
    assert run(["launch", "--again", OTHER]) == 2
    assert f"runs/{OTHER} belongs to user id {NEIGHBOUR}, and is not read" in capfd.readouterr().err
    for name in (OTHER, third.name):
        with pytest.raises(UsageError, match=name):
            RunFolder.open(here / "runs", name)


@pytest.mark.parametrize("trick", ["theirs", "link", "pipe"])
def test_a_document_that_another_user_put_there_is_not_read(
    here: Path, trick: str, capfd: pytest.CaptureFixture[str]
) -> None:
    document = a_run(here / "runs") / "run.json"
    if trick == "theirs":
        theirs(document)
    else:
        document.rename(here / "run.json")
        document.symlink_to(here / "run.json") if trick == "link" else os.mkfifo(document)
    (found,) = local_runs(here / "runs")
    assert found.broken is not None and str(document) in found.broken
    assert run(["launch", "--again", ID]) == 2
    assert "nothing here shows how it was started" in capfd.readouterr().err


@pytest.mark.parametrize("name", [".lock", "events.jsonl", "run.json.new", "stacks.txt", ".attempt", "gpu1/rank0.out"])
def test_nothing_is_written_where_a_link_leads(here: Path, name: str) -> None:
    """Where the folder around runs/ is open to all, a neighbour may put another in its place while a run goes on."""
    victim = here / ".profile"
    victim.write_text("mine")
    folder = RunFolder(a_run(here / "runs"))
    (folder.path / "gpu1").mkdir()
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).symlink_to(victim)
    logs = folder.node("gpu1")
    for write in (
        folder.hold,
        lambda: folder.event(happened("x")),
        lambda: folder.write_json("run.json", {"a": 1}),
        lambda: folder.add("stacks.txt", "x"),
        lambda: folder.begin(1),
        lambda: logs.write("rank0.out", 4, b"x"),
    ):
        with suppress(OSError, FleetError):
            write()
    folder.release()
    assert victim.read_text() == "mine"


def test_the_last_run_that_began_here_is_the_latest_whatever_the_clock_says(here: Path) -> None:
    a_run(here / "runs", ID, 2e9)
    a_run(here / "runs", OTHER, 1e9)  # the clock was set back
    RunFolder(here / "runs" / OTHER).be_latest()
    assert names(here / "runs") == [OTHER, ID]
    (here / "runs/latest").unlink()
    (here / "runs/latest").symlink_to(OTHER)
    theirs(here / "runs/latest")
    assert names(here / "runs") == [ID, OTHER], "a link of another user says nothing"


# -- pruning ----------------------------------------------------------------------------------------------------
def test_only_what_fleet_wrote_is_pruned(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = a_run(here / "runs")
    for name in ("gpu1", "attempt0/gpu1"):
        (folder / name).mkdir(parents=True)
        for log in ("node.log", "rank0.out", "rank0.err"):
            (folder / name / log).touch()
    for name in ("code.diff", "stacks.txt", "leader.log", "state.json", ".lock.held", "run.json.new", ".attempt"):
        (folder / name).touch()
    whole = a_run(here / "runs", OTHER)
    victim = here / "victim"
    victim.mkdir()
    (victim / "node.log").touch()
    kept = ["notes.txt", "gpu1/last.pt", "gpu1-copy/rank0.out", "attempt0/why.md", "gpu1/sub/rank0.out"]
    for name in kept:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    (folder / "gpu2").symlink_to(victim)
    (folder / "attempt0/node.log").symlink_to(victim / "node.log")
    assert run(["runs", "--prune", "--keep", "0", "-y"]) == 0
    said = f"runs/{ID} stays, for what fleet did not write there: "
    assert said + "attempt0/node.log, attempt0/why.md, gpu1/last.pt, gpu1/sub, gpu1-copy, gpu2, notes.txt" in (
        capfd.readouterr().err
    )
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}
    assert left == {*kept, "gpu2", "attempt0/node.log"} and (victim / "node.log").exists() and not whole.exists()
    assert run(["runs"]) == 0 and "no run in" in capfd.readouterr().out


def test_hosts_that_only_an_event_names_are_pruned_too(here: Path) -> None:
    folder = RunFolder.create(here / "runs", ID)
    folder.event(happened("started"), host="spare1")
    folder.write_json("summary.json", {"exit_code": 0})
    folder.node("spare1").write("rank0.out", 0, b"x")
    folder.release()
    assert prune(local_runs(here / "runs")[0]) == [] and not folder.path.exists()


@pytest.mark.parametrize("leads", ["theirs", "dangling", "file", "by way of ours"])
def test_an_inventory_that_another_user_put_there_is_not_written_to(
    here: Path, leads: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A link of theirs would have init write where they like, with what they know that stands in it."""
    victim, link = here / ".bashrc", here / "fleet.yaml"
    if leads != "dangling":
        victim.write_text("hosts: {a: {}}\n")
    link.symlink_to("other" if "way" in leads else victim)
    if "way" in leads:
        link = here / "other"
        link.symlink_to(victim)
    if leads == "file":
        link.unlink()
        link.write_text("hosts: {a: {}}\n")
    theirs(link)
    before = victim.read_text() if victim.exists() else None
    (here / "lines").write_text("root@127.0.0.9\n")
    assert run(["init", "-y", "lines"]) == 2
    what = "belongs to" if leads == "file" else "is a link of"
    assert f"{link.name} {what} user id {NEIGHBOUR}" in capfd.readouterr().err
    assert (victim.read_text() if victim.exists() else None) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("trick", ["their link", "their file"])
def test_what_another_user_put_beside_it_is_not_written_through(here: Path, trick: str) -> None:
    """In a folder that all may write to, as /tmp. A new file lies there until it is whole."""
    shared, victim = here / "shared", here / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    victim.write_text("mine")
    beside = shared / "fleet.pyz.new"
    beside.symlink_to(victim) if trick == "their link" else beside.write_text("theirs")
    theirs(beside)
    assert run(["pack", "shared/fleet.pyz"]) == 0
    info = (shared / "fleet.pyz").lstat()
    assert stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_size > 10_000
    assert victim.read_text() == "mine" and not os.path.lexists(beside)
