"""docs/sync.md's table of whose a file is, cell by cell: each is made with real syncs, and looked at."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.delivery import brought
from fleet.model import Host, Inventory, Report
from fleet.node.delivery.journal import read_state
from fleet.node.delivery.ownership import deliveries_to
from fleet.ops import sync
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.node.test_sync_state import code

pytestmark = pytest.mark.usefixtures("own_home")

ROOT = Path(__file__).parents[2]
KINDS = ("file", "link", "folder")
STATES = ("absent", "delivered", "seen", "own", "another's")


def table() -> dict[tuple[str, str], str]:
    """{(the source, the node): what happens} of docs/sync.md."""
    text = (ROOT / "docs/sync.md").read_text().partition("<!-- whose a file is -->")[2].partition("<!-- end -->")[0]
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in text.strip().splitlines()]
    (_corner, *states), _rule, *lines = rows
    assert tuple(states) == STATES
    return {(source, state): cell for source, *cells in lines for state, cell in zip(states, cells, strict=True)}


def mirror(source: Path, dest: Path, **options: Any) -> Report:
    plan = sync.plan(Inventory((Host("n1", "127.0.0.1"),)), Sync(source, str(dest), **options))
    return sync.run(plan, Runtime(LocalTransport()))


def make(path: Path, kind: str, what: str = "1") -> None:
    """A file, a link, or a folder (told apart by its mode)."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "file":
        path.write_text(what)
    elif kind == "link":
        path.symlink_to(what)
    else:
        path.mkdir()
        path.chmod(0o755 if what == "1" else 0o711)


def look(path: Path) -> object:
    if path.is_symlink():
        return os.readlink(path)
    if path.is_dir():
        return "1" if path.stat().st_mode & 0o777 == 0o755 else "folder"
    return path.read_text() if path.exists() else None


def into_state(state: str, kind: str, source: Path, dest: Path) -> None:
    """The source has x, and the node has it in this state."""
    make(source / "x", kind)
    (source / "stays").write_text("")
    dest.mkdir()
    if state == "seen":
        make(dest / "x", kind)
    assert mirror(source, dest).ok
    if state == "absent":
        (dest / "x").rmdir() if kind == "folder" else (dest / "x").unlink()
    if state == "own":
        make(dest / "x", "file", "the node's") if kind == "folder" else make(dest / "x", kind, "the node's")
    if state == "another's":  # of a sync to the folder around
        outer = source.with_name("outer")
        (outer / dest.name).mkdir(parents=True)
        shutil.copy2(source / "x", outer / dest.name / "x", follow_symlinks=False) if kind != "folder" else make(
            outer / dest.name / "x", kind
        )
        assert mirror(outer, dest.parent).ok


def change(what: str, kind: str, source: Path) -> None:
    if what == "has changed it":
        make(source / "x", kind, "22")
    elif what == "has it no more":
        (source / "x").rmdir() if kind == "folder" else (source / "x").unlink()
    elif what == "leaves it out":
        (source / ".fleetignore").write_text("x\n")


CELLS = [
    pytest.param(source, state, kind, id=f"{source}-{state}-{kind}", marks=[pytest.mark.slow] * (kind != "file"))
    for source, state in table()
    for kind in KINDS
]


@pytest.mark.parametrize(("what", "state", "kind"), CELLS)
def test_a_cell_of_the_table(tmp_path: Path, what: str, state: str, kind: str) -> None:
    source, dest = tmp_path / "src", tmp_path / "node" / "work"
    source.mkdir()
    dest.parent.mkdir()
    into_state(state, kind, source, dest)
    change(what, kind, source)
    before, expected = look(dest / "x"), table()[what, state]
    if kind == "folder" and what == "has changed it":  # its mode, that is
        expected = {"another's": "replaced", "own": "left, a warning"}.get(state, expected)
    report = mirror(source, dest)
    data, after = report.results[0].data, look(dest / "x")
    error = report.results[0].error
    if expected == "in the way":
        assert report.exit_code == 123 and error and error.kind == "own-files" and after == before
        assert mirror(source, dest, keep=True).ok and look(dest / "x") == before
        assert mirror(source, dest).ok, "it was agreed that the node's stays as long as the source does not change"
        make(source / "x", kind, "333")
        assert mirror(source, dest).exit_code == 123
        forced = mirror(source, dest, force=True)
        assert forced.ok and look(dest / "x") == look(source / "x")
        (aside,) = forced.results[0].data["aside"]
        assert look(Path(aside) / "x") == before, "what was replaced is kept"
        return
    assert report.ok, error
    wanted: dict[str, Callable[[], bool]] = {
        "sent": lambda: before is None and after == look(source / "x") is not None,
        "nothing": lambda: after == before and not (data["deleted"] or data["left"] or data["kept"]),
        "replaced": lambda: after == look(source / "x") != before,
        "left, a warning": lambda: after == before and data["left"] == ["x"],
        "deleted": lambda: before is not None and after is None and data["deleted"] == 1,
        "stays": lambda: after == before is not None and not data["kept"],
        "stays, a warning": lambda: after == before is not None and data["kept"] == ["x"],
        "stays; --delete-excluded deletes it": lambda: after == before is not None,
    }
    assert wanted[expected](), (before, after, data)
    again = mirror(source, dest).results[0].data
    assert (again["changed"], again["deleted"], again["sent"]) == (0, 0, 0), "a second sync has nothing to do"
    if "--delete-excluded" in expected:
        assert mirror(source, dest, delete_excluded=True).results[0].data["deleted"] == 1 and look(dest / "x") is None


def test_every_state_is_in_the_table() -> None:
    assert {state for _source, state in table()} == set(STATES)
    assert len({source for source, _state in table()}) == 4


@pytest.mark.parametrize("content", ["the same", "another"])
def test_a_first_sync_into_a_folder_that_has_files(tmp_path: Path, content: str) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    for folder in (source, dest):
        folder.mkdir()
    (source / "a.py").write_text("the same")
    (dest / "a.py").write_text(content)  # its time is another one
    report = mirror(source, dest)
    if content == "another":
        assert report.exit_code == 123 and (dest / "a.py").read_text() == "another"
        return
    assert report.ok and report.results[0].data["sent"] == 0
    (source / "a.py").write_text("edited here")
    assert mirror(source, dest).results[0].data["sent"] == 1 and (dest / "a.py").read_text() == "edited here"


def test_what_was_only_touched_on_the_node_is_still_as_delivered(tmp_path: Path) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    source.mkdir()
    (source / "a.py").write_text("1")
    (source / "b.py").write_text("1")
    assert mirror(source, dest).ok
    os.utime(dest / "a.py", (1, 1))
    shutil.copy(dest / "b.py", dest / "c.py")
    os.replace(dest / "c.py", dest / "b.py")
    (source / "a.py").write_text("22")
    (source / "b.py").unlink()
    data = mirror(source, dest).results[0].data
    assert (data["sent"], data["deleted"]) == (1, 1)


def test_a_source_whose_times_alone_are_others_does_not_fight_for_a_nodes_file(tmp_path: Path) -> None:
    """A fresh checkout, as CI makes them: results.csv, which git tracks, is rewritten by runs."""
    source, dest = tmp_path / "src", tmp_path / "work"
    source.mkdir()
    (source / "results.csv").write_text("header")
    assert mirror(source, dest, source_id="ci").ok
    (dest / "results.csv").write_text("header\nmeasured")
    os.utime(source / "results.csv", (1, 1))
    data = mirror(source, dest, source_id="ci").results[0].data
    assert (data["sent"], data["left"]) == (0, ["results.csv"])


@pytest.mark.parametrize("times", [False, True])
def test_a_pattern_that_names_a_nodes_own_file_brings_the_sources_back_though_that_has_not_changed(
    tmp_path: Path, times: bool
) -> None:
    """train.py, edited on a node: a launch refuses it, and nothing else would replace it."""
    source, dest = tmp_path / "src", tmp_path / "work"
    (source / "data").mkdir(parents=True)
    for name in ("train.py", "results.csv", "data/x"):
        (source / name).write_text("the source's")
    assert mirror(source, dest).ok
    for name in ("train.py", "results.csv"):
        (dest / name).write_text("the node's own")
    shutil.rmtree(dest / "data")
    (dest / "data").symlink_to(tmp_path)
    if times:  # as a fresh checkout has them
        os.utime(source / "train.py", (1, 1))
    assert mirror(source, dest).results[0].data["left"] == ["data", "data/x", "results.csv", "train.py"]
    data = mirror(source, dest, force=("train.py", "data")).results[0].data
    assert (data["sent"], data["replaced"], data["left"]) == (2, 2, ["results.csv"])
    assert (dest / "train.py").read_text() == (dest / "data/x").read_text() == "the source's"
    assert not (dest / "data").is_symlink() and (Path(data["aside"][0]) / "train.py").read_text() == "the node's own"
    assert mirror(source, dest).results[0].data["left"] == ["results.csv"]
    assert mirror(source, dest, force=True).results[0].data["left"] == []
    assert (dest / "results.csv").read_text() == "the source's"


def test_the_source_itself_is_never_written_to(tmp_path: Path) -> None:
    """By its own name, and through a link."""
    source = tmp_path / "src"
    (source / "ckpt").mkdir(parents=True)
    (source / "ckpt/best.pt").write_text("precious")
    (tmp_path / "link").symlink_to(source)
    for dest in (source, tmp_path / "link"):
        (source / ".fleetignore").unlink(missing_ok=True)
        assert mirror(source, dest).results[0].data["same"]
        (source / ".fleetignore").write_text("ckpt/\n")
        assert mirror(source, dest).results[0].data["same"]
    assert (source / "ckpt/best.pt").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "src"], "no state of a sync beside it"
    assert sorted(path.name for path in source.iterdir()) == [".fleet-source", ".fleetignore", "ckpt"]


def test_a_destination_in_the_source_or_around_it(tmp_path: Path) -> None:
    source = tmp_path / "work" / "src"
    source.mkdir(parents=True)
    (source / "a.py").write_text("1")
    refused = mirror(source, source / "out").results[0].error
    assert refused and "lies in the source" in refused.message and "out/ in .fleetignore" in str(refused.hint)
    assert {path.name for path in source.iterdir()} == {"a.py", ".fleet-source"}
    (source / ".fleetignore").write_text("out\n")
    assert mirror(source, source / "out").ok and not (source / "out/out").exists()
    refused = mirror(source, tmp_path / "work").results[0].error
    assert refused and "holds the source itself" in refused.message and (source / "a.py").read_text() == "1"


def test_nested_destinations_that_were_agreed_to_are_asked_about_once(tmp_path: Path) -> None:
    inner, outer, dest = tmp_path / "inner", tmp_path / "outer", tmp_path / "node/nest"
    (outer / "src").mkdir(parents=True)
    inner.mkdir()
    dest.mkdir(parents=True)
    for folder in (inner, outer / "src"):
        (folder / "a.py").write_text("1")
    assert mirror(inner, dest / "src").ok and mirror(outer, dest).ok
    for text in ("22", "333"):
        (outer / "src/a.py").write_text(text)
        if text == "22":
            assert mirror(outer, dest).exit_code == 123
            assert mirror(outer, dest, force=True).ok
        assert mirror(outer, dest).ok and (dest / "src/a.py").read_text() == text


def test_what_was_kept_and_becomes_the_sources_by_hand_is_the_sources(tmp_path: Path) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    for folder, text in ((source, "long"), (dest, "short")):
        folder.mkdir()
        (folder / "a.py").write_text(text)
    assert mirror(source, dest, keep=True).results[0].data["left"] == ["a.py"]
    (dest / "a.py").write_text("long")
    data = mirror(source, dest).results[0].data
    assert (data["left"], data["changed"]) == ([], 0)
    (source / "a.py").write_text("newer")
    assert mirror(source, dest).results[0].data["sent"] == 1


def test_force_with_a_pattern_replaces_what_it_names(tmp_path: Path) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    for name in ("a.py", "out/b.py", "out/c.csv"):
        for folder in (source, dest):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"of {folder.name}, {name}")
    error = mirror(source, dest, force=("*.py",)).results[0].error
    assert error and "out/c.csv" in error.message and "a.py (" in error.message
    assert "of work" in (dest / "a.py").read_text(), "nothing is written where something is in the way"
    assert mirror(source, dest, force=("*.py",), keep=True).ok
    assert [(dest / name).read_text()[:6] for name in ("a.py", "out/b.py", "out/c.csv")] == [
        "of src",
        "of src",
        "of wor",
    ]


def test_what_get_brought_is_not_sent_back_nor_are_folders_of_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    source, dest = tmp_path / "src", tmp_path / "work"
    (source / "n1/out").mkdir(parents=True)
    (source / "n1/out/last.pt").write_text("of the node")
    (source / "train.py").write_text("1")
    dest.mkdir()
    path = b"n1/out/last.pt"
    got = brought.record_of(os.fsencode(source) + b"/" + path, "0" * 64)
    brought.record_files(source, {os.fsdecode(path): [got]})
    assert mirror(source, dest).ok and sorted(path.name for path in dest.iterdir()) == ["train.py"]
    (source / "n1/out/last.pt").write_text("edited here")
    assert mirror(source, dest).ok and (dest / "n1/out/last.pt").read_text() == "edited here"


def test_what_was_put_aside_goes_after_thirty_days(tmp_path: Path) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    for folder in (source, dest):
        folder.mkdir()
        (folder / "a.py").write_text(f"of {folder.name}")
    (aside,) = mirror(source, dest, force=True).results[0].data["aside"]
    os.utime(aside, (1, 1))
    assert mirror(source, dest).ok and not Path(aside).exists()


def test_a_link_in_the_place_of_a_folder_is_left_until_there_is_something_new_in_the_folder(tmp_path: Path) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    (source / "data").mkdir(parents=True)
    (source / "data/a").write_text("1")
    assert mirror(source, dest).ok
    shutil.move(dest / "data", tmp_path / "disk")
    (dest / "data").symlink_to(tmp_path / "disk")
    assert mirror(source, dest).results[0].data["left"] == ["data", "data/a"]
    (source / "data/b").write_text("2")
    assert mirror(source, dest).exit_code == 123 and not (tmp_path / "disk/b").exists()


def test_nodes_whose_own_code_differs_do_not_have_the_same_code(tmp_path: Path) -> None:
    """What preflight compares; results.csv, which runs rewrite, is no code."""
    source, home = tmp_path / "src", tmp_path / "home"
    source.mkdir()
    for name in ("model.py", "results.csv"):
        (source / name).write_text("1")

    def digest(node: str) -> object:
        assert mirror(source, tmp_path / node).ok
        found = code(home, tmp_path / node)
        return found and found["digest"]

    same = digest("n1")
    assert same and digest("n2") == same
    (tmp_path / "n2/results.csv").write_text("22")
    assert digest("n2") == same
    (tmp_path / "n2/model.py").write_text("22")
    other = digest("n2")
    assert other not in (None, same)
    (tmp_path / "n1/model.py").write_text("22")
    assert digest("n1") == other, "they were edited alike"


def test_a_state_of_this_version_is_read_back(tmp_path: Path) -> None:
    source, dest = tmp_path / "src", tmp_path / "work"
    (source / "sub").mkdir(parents=True)
    (source / "sub/a").write_text("1")
    assert mirror(source, dest).ok
    state = read_state(os.fsencode(tmp_path / ".work.fleet-sync"))
    assert state and re.fullmatch("[0-9a-f]{32}", state["source"]["id"]) and state["rest"]


def test_a_folder_that_was_moved_away_and_linked_to_is_gone_from_the_source(tmp_path: Path) -> None:
    """mv data /big; ln -s /big/data: what it held is still found through the link."""
    source, dest, big = tmp_path / "src", tmp_path / "work", tmp_path / "big"
    (source / "data").mkdir(parents=True)
    (source / "data/x").write_text("1")
    (source / "stays").write_text("")
    assert mirror(source, dest).ok
    (source / "data").rename(big)
    (source / "data").symlink_to(big)
    assert mirror(source, dest).results[0].data["deleted"] == 1
    assert os.readlink(dest / "data") == str(big)


def test_force_replaces_an_edit_that_keeps_size_and_time(tmp_path: Path) -> None:
    """Without it such a one is not looked at, as by rsync; with it the node is to be as the source is."""
    source, dest = tmp_path / "src", tmp_path / "dst"
    source.mkdir()
    make(source / "train.py", "file", "lr = 1")
    mirror(source, dest)
    times = (dest / "train.py").stat()
    (dest / "train.py").write_text("lr = 9")
    os.utime(dest / "train.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    forced = mirror(source, dest, force=True)
    assert forced.ok and (dest / "train.py").read_text() == "lr = 1" and forced.results[0].data["replaced"] == 1
    assert mirror(source, dest, force=True).results[0].data["changed"] == 0


def test_a_delivery_to_a_folder_with_a_long_name_is_known_to_others(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x").write_text("1")
    dest = tmp_path / ("n" * 245)
    assert mirror(tmp_path / "source", dest).ok
    ((_, rows),) = deliveries_to(bytes(dest))
    assert [path for path in rows if path] == ["x"]
