"""What the head keeps of its deliveries, and what is said by it."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.delivery import delivered
from fleet.delivery.source_id import ids_around
from fleet.model import Host, Inventory
from fleet.ops import sync
from fleet.ops.plans import Files
from fleet.ops.run.end.failure import MISSING
from fleet.ops.run.plan.here import HeadCode
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.plans import planned


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def plan(source: Path, dest: Path, **options: Any) -> sync.SyncPlan:
    return sync.plan(Inventory((Host("n1", "127.0.0.1"),)), Sync(source, str(dest), **options))


def doomed(source: Path, dest: Path, **options: Any) -> list[str]:
    lists = [line for line in plan(source, dest, **options).lines() if isinstance(line, Files)]
    return [path for path, _ in lists[1].sizes] if len(lists) > 1 else ["?"]


def test_a_dry_run_lists_what_would_be_deleted(tmp_path: Path) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    source.mkdir()
    for name in ("a.py", "b.py", "c.log"):
        (source / name).write_text(name)
    assert doomed(source, dest) == ["?"]
    assert sync.run(plan(source, dest), Runtime(LocalTransport())).exit_code == 0
    (source / "a.py").unlink()
    (source / ".fleetignore").write_text("*.log\n")
    assert doomed(source, dest) == ["a.py"]
    assert doomed(source, dest, delete_excluded=True) == ["a.py", "c.log"]
    moved = source.rename(tmp_path / "moved")
    assert doomed(moved, dest) == ["a.py"]
    source.mkdir()
    assert doomed(source, dest) == ["?"], "another one"
    named = {"source_id": "ci"}
    assert doomed(moved, dest, **named) == ["?"]


def test_of_what_is_too_much_to_keep_nothing_older_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    source.mkdir()
    for name in ("a.py", "b.py"):
        (source / name).write_text(name)
        assert sync.run(plan(source, dest), Runtime(LocalTransport())).exit_code == 0
        assert doomed(source, dest) == ([] if name == "a.py" else ["?"])
        monkeypatch.setattr(delivered, "MOST_BYTES", 0)


def test_a_folder_around_that_is_closed_is_no_source_of_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after sudo -u, which keeps the current folder."""
    exists = Path.exists

    def closed(path: Path) -> bool:
        if path.parent == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return exists(path)

    monkeypatch.setattr(Path, "exists", closed)
    (tmp_path / "src").mkdir()
    assert tmp_path in ids_around(tmp_path / "src")


def test_a_folder_that_cannot_be_written_and_a_damaged_record_are_no_hindrance(tmp_path: Path) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    source.mkdir()
    (source / "a.py").write_text("1")
    assert sync.run(plan(source, dest), Runtime(LocalTransport())).exit_code == 0
    (record,) = (Path.home() / ".fleet/deliveries").iterdir()
    whole = record.read_bytes()
    for damaged in (b"", b"{}", whole[:-3], whole.replace(b'"at": ', b'"at": "x')):
        record.write_bytes(damaged)
        assert doomed(source, dest) == ["?"]
    record.unlink()
    record.parent.rmdir()
    record.parent.write_text("")
    assert sync.run(plan(source, dest), Runtime(LocalTransport())).exit_code == 0


def test_a_script_in_a_loop_of_links_is_in_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    here = HeadCode(planned(Host("a", "a"), Host("b", "b"), script="loop/train.py"))
    assert here.script is None and not here.is_ours({"id": "0" * 32})


def test_what_a_rank_missed_is_found_in_linear_time() -> None:
    """In what it wrote last, whatever that is."""
    began = time.process_time()
    assert MISSING.search("FileNotFoundError " * 4000) is None
    assert time.process_time() - began < 2.0
    found = MISSING.search("FileNotFoundError: [Errno 2] No such file or directory: 'data/vocab.txt'")
    assert found and found[1] == "data/vocab.txt"
