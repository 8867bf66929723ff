"""Logs on the head: nothing twice, nothing lost, also where others remove files, or a node has no more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fleet.errors import ConnectError
from fleet.ops.run.kept.logs import NodeLogs


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


def test_files_that_somebody_else_removed_or_wrote_to_are_fetched_anew(tmp_path: Path) -> None:
    """Two follow a run after `rm -r runs`, each behind a lock of its own: no line twice, no file from its middle."""
    logs = NodeLogs(tmp_path / "runs/h")
    logs.write("rank0.out", 0, b"abc")
    (tmp_path / "runs/h/rank0.out").unlink()
    assert logs.write("rank0.out", 3, b"def") == b"" and "another process" in str(logs.blocked)
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
