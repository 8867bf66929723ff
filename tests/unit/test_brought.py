"""What is kept of files that `fleet get` put here: whose a file is must be known, and never guessed."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest

from fleet.delivery import brought
from fleet.delivery.tree import scan


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def put(folder: Path, *names: str, text: str = "x") -> None:
    """As get does: the file, then the note."""
    notes = {}
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        notes[name] = [brought.record_of(bytes(path), hashlib.sha256(text.encode()).hexdigest())]
    brought.record_files(folder, notes)


def test_only_what_nobody_has_changed_since(tmp_path: Path) -> None:
    put(tmp_path / "p", "a", "b", "c", "out/d", "out/e")
    assert brought.unchanged(tmp_path / "p") == {"a", "b", "c", "out/d", "out/e"}
    (tmp_path / "p/a").write_text("y")  # as long as before
    (tmp_path / "p/b").unlink()
    os.utime(tmp_path / "p/c")  # another time, the same bytes
    (tmp_path / "p/out/d").unlink()
    (tmp_path / "p/out/d").symlink_to("e")
    (tmp_path / "p/own").write_text("x")
    assert brought.unchanged(tmp_path / "p") == {"c", "out/e"}


def test_a_root_above_or_below_the_folder_that_was_got_into(tmp_path: Path) -> None:
    put(tmp_path / "p/results", "run/a")
    assert brought.unchanged(tmp_path / "p") == {"results/run/a"}
    assert brought.unchanged(tmp_path / "p/results/run") == {"a"}
    assert brought.unchanged(tmp_path / "p/res") == brought.unchanged(tmp_path / "other") == set()
    (tmp_path / "link").symlink_to("p")
    assert brought.unchanged(tmp_path / "link/results") == {"run/a"}


def test_links_and_names_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    name = os.fsdecode(b"n\xff\n")
    os.symlink("to", tmp_path / "p" / name)
    full = os.fsencode(tmp_path / "p" / name)
    brought.record_files(tmp_path / "p", {name: [brought.record_of(full, hashlib.sha256(b"to").hexdigest())]})
    assert brought.unchanged(tmp_path / "p") == {name}
    os.unlink(full)
    os.symlink("TO", full)
    assert not brought.unchanged(tmp_path / "p")


def test_nobody_else_reads_it_and_damage_means_nothing_is_known(tmp_path: Path, home: Path) -> None:
    put(tmp_path / "p", "a")
    paths = list((home / ".fleet").rglob("*"))
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in [home / ".fleet", *paths])
    kept = next(path for path in paths if path.is_file() and path.stat().st_size)
    whole = kept.read_text()
    for text in ("", "{", "[]\n{}", '"/x"', whole[:-5], whole.partition("\n")[0] + '\n{"a": [1]}', "[" * 100_000):
        kept.write_text(text)
        assert brought.unchanged(tmp_path / "p") == set()


def test_gets_at_once_lose_none_of_each_other(tmp_path: Path) -> None:
    threads = [threading.Thread(target=put, args=(tmp_path / "p", f"f{n}")) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(brought.unchanged(tmp_path / "p")) == 12


def test_what_is_kept_has_an_end(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brought, "MOST_FOLDERS", 3)
    monkeypatch.setattr(brought, "MOST_FILES", 2)
    for n in range(5):
        put(tmp_path / f"p{n}", "a", "b", "c")
    kept = [brought.unchanged(tmp_path / f"p{n}") for n in range(5)]
    assert kept == [set(), set(), {"b", "c"}, {"b", "c"}, {"b", "c"}]


def test_what_was_below_a_file_that_get_brought_is_gone(tmp_path: Path) -> None:
    """A folder of the source made room for it: what lay in that is not left out, it is deleted on the nodes."""
    put(tmp_path / "p", "data")
    tree = scan(tmp_path / "p")
    assert tree.entries == () and tree.excluded([("data", "d"), ("data", "f"), ("data/x", "f")]) == {"data"}
