"""What a run's folder says is believed where this user's fleet wrote it; of another's it is shown, and asked."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fleet
from fleet.errors import UsageError
from fleet.own import seal
from tests.in_process import command_line, typed
from tests.run_folders import an_id, run_folder
from tests.scripted import STOPPED, Scripted, about, lists, part

RAN = "ran"
HINT = "'fleet launch --dry-run --again {}' shows what it would be; --yes launches it"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that this user launched in the current folder, a project."""
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(project)
    Path("fleet.yaml").write_text(f"defaults: {{workdir: {project}}}\nhosts:\n  a: {{address: 127.0.0.1}}\n")
    Path("say.sh").write_text(f"echo $1 >> {tmp_path / RAN}\n")
    return launched()


def launched() -> Path:
    assert typed(["--transport", "local", "launch", "say.sh", "mine"]) == 0
    return Path("runs", os.readlink("runs/latest"))


def starts(tmp_path: Path) -> list[str]:
    """What was run, start by start."""
    return (tmp_path / RAN).read_text().split()


def another_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is at the keyboard from here on has another home."""
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))


def other_script(run: Path) -> None:
    path = run / "run.json"
    document = json.loads(path.read_text())
    document["launch"]["args"] = ["theirs"]
    path.write_text(json.dumps(document))


def other_queue(run: Path) -> None:
    """A line of its own in the events: the run of a job, with options of the queue."""
    event = {"event": "submitted", "on": "slurm", "job": "7", "by": "me", "script": "x", "logs": "x", "asked": {}}
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"time": 1.0, **event, "seal": seal(run.name, "slurm", {"partition": "gpu"})}) + "\n")


def of_another_run(run: Path) -> None:
    """Another run of mine, under this one's id."""
    shutil.copy(launched() / "run.json", run / "run.json")


FORGED: list[Callable[[Path], None]] = [other_script, other_queue, of_another_run]


@pytest.mark.parametrize("forge", FORGED)
@pytest.mark.parametrize("option", ["--again", "--from"])
def test_another_text_in_a_run_of_mine_is_not_believed(
    option: str, forge: Callable[[Path], None], mine: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert typed(["launch", option, mine.name]) == 0
    forge(mine)
    before, _ = starts(tmp_path), capfd.readouterr()
    assert typed(["launch", option, mine.name]) == 2 and starts(tmp_path) == before
    said = capfd.readouterr().err
    assert f"{mine} is not as your fleet wrote it, if it did: nothing is launched without consent" in said, said
    assert HINT.format(mine.name) in " ".join(said.split())


def test_a_handed_folder_is_shown_and_launched_by_consent_alone(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    another_user(tmp_path / "victim", monkeypatch)
    run, asked = mine.name, list[str]()

    def answer(yes: bool | None) -> Callable[[str], bool | None]:
        return lambda question: [asked.append(question), yes][1]

    for verb in (lambda ask: fleet.open(transport="local", ask=ask).again(run), lambda ask: fleet.reopen(run, ask=ask)):
        for refusal in (None, False):
            with pytest.raises(UsageError, match="is not as your fleet wrote it"):
                verb(answer(refusal))
    assert starts(tmp_path) == ["mine"]
    for said in ("fleet launch say.sh mine", str(Path.cwd() / "fleet.yaml"), "over local", '"address": "127.0.0.1"'):
        assert all(said in question for question in asked), asked[0]
    assert typed(["logs", run]) == 0 and typed(["launch", "--dry-run", "--again", run]) == 0
    assert "say.sh" in capfd.readouterr().out and starts(tmp_path) == ["mine"]
    assert fleet.open(transport="local", ask=answer(True)).again(run).wait().ok
    assert typed(["launch", "--yes", "--from", run]) == 0
    assert starts(tmp_path) == ["mine"] * 3


def test_following_a_handed_run_vouches_for_nothing(mine: Path) -> None:
    """Its run.json is amended by who leads it: what was not mine is not mine then."""
    from fleet.ops.run.kept.folder import RunFolder

    RunFolder(mine).amend("run.json", restarts=[])
    assert typed(["launch", "--again", mine.name]) == 0
    other_script(mine)
    RunFolder(mine).amend("run.json", restarts=[])
    assert typed(["launch", "--again", mine.name]) == 2


def test_a_project_that_was_moved_or_copied_is_mine_still(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Path.cwd()
    shutil.copytree(project, project.with_name("copy"), symlinks=True)
    project.rename(project.with_name("project2"))
    for name in ("project2", "copy"):
        monkeypatch.chdir(project.with_name(name))
        assert typed(["launch", "--workdir", str(Path.cwd()), "--from", mine.name]) == 0


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda key: key.symlink_to("/dev/zero")])
def test_a_head_that_can_keep_no_key_launches_and_asks_later(
    make: Callable[[Path], object], mine: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key = Path.home() / ".fleet/key"
    key.unlink()
    make(key)
    run = launched()
    assert capfd.readouterr() and typed(["launch", "--again", run.name]) == 2
    assert "is not as your fleet wrote it" in capfd.readouterr().err


def test_who_begins_at_once_in_a_new_home_has_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    made, at_once = list[str | None](), threading.Barrier(16)

    def make() -> None:
        at_once.wait()
        made.append(seal("x"))

    threads = [threading.Thread(target=make) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 16 and len({*made}) == 1 and None not in made
    assert (tmp_path / ".fleet/key").stat().st_mode & 0o777 == 0o600
    (tmp_path / ".fleet/key").write_bytes(b"")  # of a disk that was full
    assert seal("x") not in (None, made[0]), "an empty key is none"


@pytest.fixture
def handed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a live run, by which a handed folder is called."""
    monkeypatch.chdir(tmp_path)
    Path("hostfile").write_text("h\n")
    run_folder(Path("runs"), an_id("r"), handed=True)
    return an_id("r")


@pytest.mark.parametrize("verb", ["stop", "attach"])
@pytest.mark.parametrize("word", ["latest", "r"])
def test_a_handed_folder_says_not_which_run_is_meant(word: str, verb: str, handed: str) -> None:
    live: dict[str, Any] = {"list_runs": lists(part(handed, about=about(1.0))), "stop": [STOPPED]}
    done = command_line([verb, word], Scripted({"h": live}))
    assert done.code == 2 and f"name it by its whole id: {handed}" in " ".join(done.err.split()), done
    if verb == "stop":
        assert command_line([verb, handed], Scripted({"h": live})).code == 0, "who names it means it"
