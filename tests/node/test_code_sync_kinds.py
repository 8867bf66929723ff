"""Files, folders and links that become one another, also with the node's own things in the way, and when a sync is
killed in the middle of it."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.node.test_code_sync import mirror, node_with, ok, snapshot

KILLED_IN_THE_SWITCH = """
import os
from fleet.node.delivery.journal import Journal
honest = Journal.begin
def begin(*args):
    honest(*args)
    os._exit(9)
Journal.begin = begin
"""
KILLED_AT_ITS_END = """
import os
from fleet.node.delivery.journal import Journal
Journal.finish = lambda *args: os._exit(9)
"""
CUT_BEFORE_THE_END = """
import os
from fleet.node.delivery.commit import Commit
Commit.close = lambda *args: os._exit(9)
"""
# as a user who is not root: nothing is allowed but what modes say
NO_RIGHTS = """
import ctypes
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
"""


@pytest.fixture
def source(source: Path) -> Path:
    (source / "other.py").write_text("other")
    return source


def become(path: Path, kind: str) -> None:
    """Make it another kind of thing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "folder":
        (path / "sub").mkdir(parents=True)
        (path / "sub" / "in.py").write_text("in")
    elif kind == "link":
        path.symlink_to("elsewhere")
    elif kind == "file":
        path.write_text("a file")


KINDS = [
    ("file", "folder"),
    ("folder", "file"),
    ("folder", "link"),
    ("link", "folder"),
    ("file", "link"),
    ("link", "file"),
    ("folder", "gone"),
    ("file", "gone"),
    ("link", "gone"),
]
SOME = [*KINDS[1:4], *(pytest.param(*kinds, marks=pytest.mark.slow) for kinds in [KINDS[0], *KINDS[4:]])]


# -- a link that was delivered leads into the tree itself -------------------------------------------------------
@pytest.mark.parametrize("text", ["same", "another"])
def test_a_link_that_becomes_the_folder_it_led_to(source: Path, dest: Path, text: str) -> None:
    (source / "b" / "sub").mkdir(parents=True)
    for name in ("b/f.py", "b/sub/g.py"):
        (source / name).write_text("same")
    (source / "b" / "l").symlink_to("f.py")
    (source / "a").symlink_to("b")
    ok(source, dest)
    (source / "a").unlink()
    shutil.copytree(source / "b", source / "a", symlinks=True)  # times, too: seen through the link all is there already
    (source / "a" / "sub" / "g.py").write_text(text)
    os.utime(source / "a/sub/g.py", ns=(0, (source / "b/sub/g.py").stat().st_mtime_ns))
    ok(source, dest)
    assert snapshot(dest) == snapshot(source)


# -- folders in which the node has something of its own ---------------------------------------------------------
@pytest.mark.parametrize("kind", ["file", "link"])
@pytest.mark.parametrize("own", ["pkg/__pycache__/in.pyc", "pkg/sub/own", "pkg/sub/in.py"])
def test_a_folder_with_something_of_the_nodes_own_is_not_replaced(
    source: Path, dest: Path, kind: str, own: str
) -> None:
    become(source / "pkg", "folder")
    ok(source, dest)
    (dest / own).parent.mkdir(exist_ok=True)
    (dest / own).write_text("the node's own")
    before = snapshot(dest)
    become(source / "pkg", kind)
    (source / "other.py").write_text("newer")
    for _ in range(2):
        report = mirror(source, dest)
        error = report.results[0].error
        assert report.exit_code == 123 and error and f"pkg (a folder with {own}" in error.message
        named = os.path.dirname(own) if "__pycache__" in own else own
        assert snapshot(dest) == before
        assert not (dest.parent / ".work.fleet-sync" / "switching").exists(), "nothing was begun"
    (shutil.rmtree if (dest / named).is_dir() else os.unlink)(dest / named)
    ok(source, dest)
    assert snapshot(dest) == snapshot(source)


# -- syncs that were killed when they had begun to put things in place ------------------------------------------
@pytest.mark.parametrize("old, new", SOME)
def test_killed_while_something_becomes_another_kind(source: Path, dest: Path, old: str, new: str) -> None:
    become(source / "x", old)
    ok(source, dest)
    become(source / "x", new)
    assert not mirror(source, dest, transport=node_with(KILLED_IN_THE_SWITCH)).ok
    ok(source, dest)
    assert snapshot(dest) == snapshot(source)


@pytest.mark.parametrize("old, new", SOME)
def test_killed_and_then_it_is_as_before(source: Path, dest: Path, old: str, new: str) -> None:
    become(source / "x", old)
    ok(source, dest)
    become(source / "x", new)
    (source / "y").mkdir()  # something to put in place, whatever x is
    # it came as far as the last step
    assert not mirror(source, dest, transport=node_with(KILLED_AT_ITS_END)).ok
    become(source / "x", old)
    ok(source, dest)
    assert snapshot(dest) == snapshot(source)


@pytest.mark.parametrize("killed", ["before it was placed", "after it was placed", "twice"])
def test_changed_then_killed_then_gone_from_the_source(source: Path, dest: Path, killed: str) -> None:
    (source / "a.py").write_text("1")
    ok(source, dest)
    (source / "a.py").write_text("22")
    first = KILLED_IN_THE_SWITCH if killed.startswith("before") else KILLED_AT_ITS_END
    assert not mirror(source, dest, transport=node_with(first)).ok
    if killed == "twice":  # what is there is of the first one, what the second one was to bring never came
        (source / "a.py").write_text("333")
        assert not mirror(source, dest, transport=node_with(KILLED_IN_THE_SWITCH)).ok
    (source / "a.py").unlink()
    assert ok(source, dest)["kept"] == []
    assert snapshot(dest) == snapshot(source)


def test_what_the_node_changed_after_a_sync_was_killed_is_kept(source: Path, dest: Path) -> None:
    (source / "a.py").write_text("1")
    ok(source, dest)
    (source / "a.py").write_text("22")
    assert not mirror(source, dest, transport=node_with(KILLED_IN_THE_SWITCH)).ok
    (dest / "a.py").write_text("of the node")
    (source / "a.py").unlink()
    assert ok(source, dest)["kept"] == ["a.py"] and (dest / "a.py").read_text() == "of the node"


# -- read-only folders ------------------------------------------------------------------------------------------
def test_changes_in_a_read_only_folder(source: Path, dest: Path) -> None:
    unprivileged = node_with(NO_RIGHTS)
    folder = source / "lib"
    become(folder, "folder")
    (folder / "old.py").write_text("old")
    (folder / "link").symlink_to("old.py")

    def modes(mode: int) -> None:
        for path in (folder, folder / "sub"):
            if path.exists():
                path.chmod(mode)

    modes(0o555)
    ok(source, dest, unprivileged)
    for change in (
        lambda: (folder / "new.py").write_text("new"),
        lambda: (folder / "old.py").unlink(),
        lambda: (folder / "sub/in.py").write_text("changed"),
        lambda: (folder / "link").unlink(),
        lambda: (folder / "link").symlink_to("new.py"),
        lambda: (folder / "deeper").mkdir(),
        lambda: (folder / "deeper/x").write_text("x"),
        lambda: shutil.rmtree(folder / "deeper"),
        lambda: shutil.rmtree(folder / "sub"),
    ):
        modes(0o755)
        change()
        modes(0o555)
        ok(source, dest, unprivileged)
        assert snapshot(dest) == snapshot(source)
        assert stat.S_IMODE((dest / "lib").stat().st_mode) == 0o555
    modes(0o755)
    shutil.rmtree(folder)
    ok(source, dest, unprivileged)
    assert snapshot(dest) == snapshot(source)


def test_a_read_only_folder_that_was_left_open_is_closed_again(source: Path, dest: Path) -> None:
    (source / "lib").mkdir()
    (source / "lib/a.py").write_text("a")
    (source / "lib").chmod(0o555)
    ok(source, dest)
    (source / "lib").chmod(0o755)
    (source / "lib/b.py").write_text("b")
    (source / "lib").chmod(0o555)
    assert not mirror(source, dest, transport=node_with(NO_RIGHTS + CUT_BEFORE_THE_END)).ok
    ok(source, dest, node_with(NO_RIGHTS))
    assert snapshot(dest) == snapshot(source)
