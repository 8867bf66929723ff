"""Logs on the head: nothing twice, nothing lost, also when the disk is full; names from nodes are checked."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import ConnectError, UsageError
from fleet.ops.run.kept import folder as launch_folder
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.local import followed
from fleet.ops.run.kept.logs import NodeLogs, stream_of
from fleet.protocol.decode import Misfit, decode
from fleet.protocol.messages.run import Stream
from tests.events import happened


def test_bytes_are_appended_once(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path / "h")
    assert logs.write("rank0.out", 0, b"abc") == b"abc"
    assert logs.write("rank0.out", 0, b"abcdef") == b"def"
    assert logs.write("rank0.out", 2, b"cd") == b""
    assert (tmp_path / "h/rank0.out").read_bytes() == b"abcdef"
    assert NodeLogs(tmp_path / "h").sizes() == {"rank0.out": 6}


def test_a_gap_is_an_error_not_a_hole(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path)
    with pytest.raises(ConnectError, match="never sent"):
        logs.write("rank0.out", 5, b"x")


@pytest.mark.parametrize("name", ["../x", "rank0.out/../../y", "rank0.json", "", "rankX.out", "node.log\n", "/etc/x"])
def test_a_node_cannot_name_files_on_the_head(name: str) -> None:
    with pytest.raises(Misfit, match="name is"):
        decode(Stream, {"event": "stream", "id": 0, "name": name, "offset": 0})


def test_streams() -> None:
    assert stream_of("rank12.err") == (12, "stderr") and stream_of("node.log") == (None, "stderr")


def test_a_full_disk_blocks_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = NodeLogs(tmp_path)
    real, room = os.write, [4]

    def write(fd: int, data: Any) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        done = real(fd, bytes(data)[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", write)
    assert logs.write("rank0.out", 0, b"abcdef") == b"abcd"
    assert logs.blocked == "No space left on device" and logs.sizes() == {"rank0.out": 4}
    assert logs.write("rank0.out", 6, b"ghi") == b""
    monkeypatch.undo()
    assert logs.try_again() and logs.blocked is None
    assert logs.write("rank0.out", logs.sizes()["rank0.out"], b"efghi") == b"efghi"
    assert (tmp_path / "rank0.out").read_bytes() == b"abcdefghi"


def test_files_that_somebody_else_removed_or_wrote_to_are_fetched_anew(tmp_path: Path) -> None:
    """Two follow a run after `rm -r runs`, each behind a lock of its own: no line twice, no file from its middle."""
    logs = NodeLogs(tmp_path / "runs/h")
    logs.write("rank0.out", 0, b"abc")
    (tmp_path / "runs/h/rank0.out").unlink()
    assert logs.write("rank0.out", 3, b"def") == b"" and "somebody else" in str(logs.blocked)
    assert logs.try_again() and logs.sizes() == {"rank0.out": 0}
    assert logs.write("rank0.out", 0, b"abcdef") == b"abcdef"
    NodeLogs(tmp_path / "runs/h").write("rank0.out", 6, b"ghi")
    assert logs.write("rank0.out", 6, b"ghi") == b"" and logs.blocked
    assert logs.try_again() and logs.write("rank0.out", 6, b"ghijk") == b"jk"
    shutil.rmtree(tmp_path / "runs")
    assert logs.write("rank0.out", 11, b"l") == b"" and logs.blocked
    assert logs.try_again() and logs.write("rank0.out", 0, b"abcdefghijkl") == b"abcdefghijkl"
    assert (tmp_path / "runs/h/rank0.out").read_bytes() == b"abcdefghijkl"
    assert (tmp_path / "runs").stat().st_mode & 0o77 == 0


def test_a_lock_that_was_removed_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_folder, "SIGN_SECONDS", 0.0)
    folder = RunFolder.create(tmp_path, "r")
    folder.event(happened("x"))
    shutil.rmtree(tmp_path / "r")
    folder.sign()
    assert folder.held and not followed(tmp_path / "r")
    folder.event(happened("y"))
    (tmp_path / "r").mkdir()
    folder.sign()
    assert followed(tmp_path / "r"), "who comes now does not write there, too"
    folder.sign()
    folder.release()
    assert not followed(tmp_path / "r")


def test_the_run_folder_is_made_or_refused_in_words(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "r")
    folder.event(happened("x"), host="a")
    folder.write_json("run.json", {"a": 1})
    assert json.loads((folder.path / "run.json").read_text()) == {"a": 1}
    assert json.loads((folder.path / "events.jsonl").read_text())["event"] == "x"
    assert sorted(p.name for p in folder.path.iterdir()) == [".lock", "events.jsonl", "run.json"]
    with pytest.raises(UsageError, match="File exists"):
        RunFolder.create(tmp_path / "runs", "r")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="/file is a file"):
        RunFolder.create(tmp_path / "file", "r")


def test_events_wait_for_room_and_are_never_half_a_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    os.mknod(tmp_path / "events.jsonl", stat.S_IFCHR | 0o600, os.stat("/dev/full").st_rdev)
    folder.event(happened("first"))
    (tmp_path / "events.jsonl").unlink()
    folder.event(happened("second"))
    assert [json.loads(x)["event"] for x in (tmp_path / "events.jsonl").read_text().splitlines()] == ["first", "second"]


def test_runs_are_their_owners_business(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "run-1")
    logs = folder.node("gpu1")
    logs.write("rank0.out", 0, b"secret")
    folder.event(happened("plan"))
    folder.write_json("run.json", {})
    for path in tmp_path.rglob("*"):
        if path.name != ".gitignore":
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_what_a_node_no_longer_has_is_named_and_following_goes_on(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path)
    logs.write("rank0.out", 0, b"abc\n")
    logs.skip("rank0.out", 4)
    logs.skip("rank0.out", 1)
    assert logs.gaps == {} and logs.sizes() == {"rank0.out": 4}
    logs.skip("rank0.out", 1_000_004)
    assert logs.write("rank0.out", 1_000_004, b"xyz\n") == b"xyz\n"
    logs.skip("rank1.out", 70)  # shorter than the line that names it
    assert logs.write("rank1.out", 70, b"") == b""
    line = "\n[fleet: {} bytes are not here: the node kept no more, --max-log]\n"
    assert (tmp_path / "rank0.out").read_text() == f"abc\n{line.format(1_000_000)}xyz\n"
    for again in (logs, NodeLogs(tmp_path)):
        assert again.sizes() == {"rank0.out": 1_000_008, "rank1.out": 70}
        assert again.gaps == {"rank0.out": 1_000_000, "rank1.out": 70}
    assert again.write("rank0.out", 1_000_004, b"xyz\nmore") == b"more"
    assert (tmp_path / "rank1.out").read_text() == line.format(70)
