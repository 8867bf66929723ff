"""The folder of a run on the head: made or refused, its events and documents, the logs of its attempts."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import threading
from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.node.base.processes import forked
from fleet.node.base.run_folder import note
from fleet.ops.run.kept.folder import RunFolder
from tests.events import happened
from tests.moments import just_before


def events(folder: RunFolder) -> list[str]:
    return [json.loads(line)["event"] for line in (folder.path / "events.jsonl").read_text().splitlines()]


def test_it_is_made_or_refused_in_words(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "r")
    folder.event(happened("x"), host="a")
    folder.write_json("run.json", {"a": 1})
    assert json.loads((folder.path / "run.json").read_text()) == {"a": 1} and events(folder) == ["x"]
    assert sorted(p.name for p in folder.path.iterdir()) == [".lock", ".made", "events.jsonl", "run.json"]
    with pytest.raises(UsageError, match="File exists"):
        RunFolder.create(tmp_path / "runs", "r")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="/file is a file"):
        RunFolder.create(tmp_path / "file", "r")


def test_runs_are_their_owners_business(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "run-1")
    folder.node("gpu1").write("rank0.out", 0, b"secret")
    folder.event(happened("plan"))
    folder.write_json("run.json", {})
    for path in tmp_path.rglob("*"):
        if path.name != ".gitignore":
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_events_wait_for_room_and_are_never_half_a_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    os.mknod(tmp_path / "events.jsonl", stat.S_IFCHR | 0o600, os.stat("/dev/full").st_rdev)
    folder.event(happened("first"))
    (tmp_path / "events.jsonl").unlink()
    folder.event(happened("second"))
    assert events(folder) == ["first", "second"]


@pytest.mark.parametrize("again", [False, True])
def test_a_lock_that_was_removed_is_made_again(tmp_path: Path, again: bool) -> None:
    """again: the folder is made again meanwhile, by who looks on."""
    folder = RunFolder.create(tmp_path, "r")
    shutil.rmtree(folder.path)
    if again:
        folder.path.mkdir()
    folder.sign()
    assert folder.held
    assert RunFolder(folder.path).hold() is False if again else not folder.path.exists()
    folder.release()
    assert not again or RunFolder(folder.path).hold()


def test_documents_that_two_processes_amend(tmp_path: Path) -> None:
    """One restarts the run while another one writes what git reports: neither undoes what the other writes."""
    head = RunFolder.create(tmp_path / "runs", "r")
    head.event(happened("version"))
    head.write_json("run.json", {"run": "r"})
    other = threading.Thread(target=RunFolder(head.path).amend, args=["run.json"], kwargs={"restarts": [1]})

    def amend_too() -> None:
        other.start()
        other.join(0.3)  # it waits for its turn

    with just_before("open", head.path / "run.json.new", amend_too):  # it has read what there is
        head.amend("run.json", code="clean")
    other.join(60)
    assert json.loads((head.path / "run.json").read_text()) == {"run": "r", "code": "clean", "restarts": [1]}


def test_logs_of_earlier_attempts_are_set_aside(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "r")
    (folder.path / "stacks").mkdir()
    for attempt in (0, 1, 3):  # the third one could not begin
        folder.begin(attempt)
        folder.node("a", attempt).write("rank0.out", 0, f"{attempt}\n".encode())
    found = {str(path.relative_to(folder.path)): path.read_text() for path in folder.path.glob("**/rank0.out")}
    assert found == {"a/rank0.out": "3\n", "attempt1/a/rank0.out": "1\n", "attempt0/a/rank0.out": "0\n"}
    assert (folder.path / "stacks").is_dir()
    late = folder.node("a", 0)
    assert late.sizes() == {"rank0.out": 2} and folder.is_aside(0) and not folder.is_aside(3)
    silent = RunFolder.create(tmp_path / "runs", "s")
    silent.begin(1)
    assert not silent.aside(0).exists(), "no host had begun"


def test_logs_of_an_attempt_that_is_the_last_after_all_come_back(tmp_path: Path) -> None:
    """Where a restart could not begin on all nodes, the one before it is the run's end."""
    folder = RunFolder.create(tmp_path / "runs", "r")
    for attempt, text in ((0, b"0\n"), (1, b"1\n"), (0, b"0\nlate\n")):
        folder.begin(attempt)
        folder.node("a", attempt).write("rank0.out", 0, text)
    folder.node("b", 1).write("rank1.out", 0, b"of an attempt that is not the last\n")
    found = {str(path.relative_to(folder.path)) for path in folder.path.glob("**/rank*.out")}
    assert found == {"a/rank0.out", "attempt1/a/rank0.out", "attempt1/b/rank1.out"} and folder.attempt == 0
    assert (folder.path / "a/rank0.out").read_text() == "0\nlate\n" and folder.is_aside(1)


def test_a_note_that_the_disk_has_no_room_for_leaves_no_half_of_a_line(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    log.write_bytes(b"of a rank\n")

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
        note(str(tmp_path), "a line that is longer than that")

    assert os.waitpid(forked(work), 0)[1] == 0
    assert log.read_bytes() == b"of a rank\n"
    note(str(tmp_path), "a line")
    assert log.read_bytes() == b"of a rank\nfleet: a line\n"


def test_a_note_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "node.log").symlink_to(tmp_path / "another")
    note(str(tmp_path), "a line")
    assert not (tmp_path / "another").exists()
