"""Code sync against this machine's own file system: a real node program, only ssh left out."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.model import Host, Inventory, Report
from fleet.node.delivery.journal import read_state, rows_of
from fleet.node.delivery.stage import BLOCK
from fleet.ops import sync
from fleet.ops.run.kept.folder import RunFolder
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.node.seams import Tap

pytestmark = pytest.mark.usefixtures("own_home")

LARGE = BLOCK + 1  # goes in blocks


def mirror(
    source: Path,
    dest: Path,
    names: tuple[str, ...] = ("n1",),
    transport: LocalTransport | None = None,
    **options: object,
) -> Report:
    inventory = Inventory(tuple(Host(n, "127.0.0.1") for n in names))
    plan = sync.plan(inventory, Sync(source, str(dest), **options))
    return sync.run(plan, Runtime(transport or LocalTransport()))


def ok(source: Path, dest: Path, transport: LocalTransport | None = None) -> dict[str, object]:
    report = mirror(source, dest, transport=transport, max_delete="all")
    assert report.exit_code == 0, [
        (r.error and r.error.kind, str(r.error), r.error and r.error.hint) for r in report.results
    ]
    return dict(report.results[0].data)


def typed(source: Path, dest: Path) -> list[str]:
    """Returns the command line that does what mirror() does."""
    (source.parent / "hostfile").write_text("n1\n")
    fleet = [sys.executable, "-m", "fleet", "-i", str(source.parent / "hostfile"), "--transport", "local"]
    return [*fleet, "sync", str(source), "--to", str(dest)]


def node_with(lines: str) -> Tap:
    """Returns a transport to nodes whose sync program runs these lines before it begins."""
    return Tap({"delivery.code_sync": lines})


def snapshot(folder: Path) -> dict[bytes, tuple[object, ...]]:
    """{relative path: (mode, size, mtime, content or link)} of everything below."""
    found: dict[bytes, tuple[object, ...]] = {}
    root = os.fsencode(folder)
    for base, dirs, files in os.walk(root):
        for name in dirs + [name for name in files if name != b".fleet-source"]:  # what a source is known by
            path = os.path.join(base, name)
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                body: object = os.readlink(path)
                found[os.path.relpath(path, root)] = ("link", body)
            elif stat.S_ISDIR(info.st_mode):
                found[os.path.relpath(path, root)] = ("dir", stat.S_IMODE(info.st_mode))
            else:
                body = Path(os.fsdecode(path)).read_bytes()
                found[os.path.relpath(path, root)] = (stat.S_IMODE(info.st_mode), info.st_mtime_ns, body)
    return found


def test_everything_a_tree_can_hold_arrives_as_it_was(source: Path, dest: Path) -> None:
    (source / "train.py").write_text("print(1)\n")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o751)
    (source / "empty").mkdir(mode=0o711)
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "b" / "with space 'n\" $(id)\nnewline*").write_bytes(b"odd")
    Path(os.fsdecode(os.fsencode(source) + b"/latin-\xe9")).write_bytes(b"\xff\x00")
    (source / "-rf").write_bytes(b"dash")
    (source / "link").symlink_to("a/b")
    (source / "dangling").symlink_to("/nowhere/at all")
    (source / "zero").touch()
    data = ok(source, dest)
    assert snapshot(dest) == snapshot(source)
    assert data["sent"] == 6


def test_a_folder_that_was_there_gets_the_setgid_bit_of_the_sources(source: Path, dest: Path) -> None:
    (source / "shared").mkdir()
    (source / "shared").chmod(0o2775)
    (dest / "shared").mkdir(parents=True)
    (dest / "shared").chmod(0o775)
    ok(source, dest)
    assert stat.S_IMODE((dest / "shared").stat().st_mode) == 0o2775


def test_a_second_sync_sends_nothing_and_one_changed_file_sends_one(source: Path, dest: Path) -> None:
    for i in range(50):
        (source / f"f{i}").write_text(str(i))
    ok(source, dest)
    assert ok(source, dest)["sent"] == 0
    (source / "f7").write_text("changed")
    assert ok(source, dest)["sent"] == 1
    assert (dest / "f7").read_text() == "changed"
    (source / "f8").chmod(0o700)
    assert ok(source, dest)["sent"] == 0
    assert stat.S_IMODE((dest / "f8").stat().st_mode) == 0o700


def test_only_what_a_sync_delivered_is_deleted(source: Path, dest: Path) -> None:
    (source / "pkg").mkdir()
    (source / "pkg" / "old.py").write_text("old")
    (source / "gone").mkdir()
    (source / "gone" / "x").write_text("x")
    (source / "edited").write_text("from the head")
    ok(source, dest)
    (dest / "pkg" / "checkpoint.pt").write_text("precious")
    (dest / "mine").mkdir()
    (dest / "edited").write_text("edited on the node")
    shutil.rmtree(source / "pkg")
    shutil.rmtree(source / "gone")
    (source / "edited").unlink()
    data = ok(source, dest)
    assert (dest / "pkg" / "checkpoint.pt").read_text() == "precious"
    assert (dest / "mine").is_dir()
    assert not (dest / "pkg" / "old.py").exists()
    assert not (dest / "gone").exists()
    assert (dest / "edited").read_text() == "edited on the node"
    assert "edited" in data["kept"]  # type: ignore[operator]


def test_an_edit_on_the_node_is_left_until_the_source_changes_too(source: Path, dest: Path) -> None:
    (source / "a.py").write_text("head")
    ok(source, dest)
    (dest / "a.py").write_text("node")
    data = ok(source, dest)
    assert (data["sent"], data["left"]) == (0, ["a.py"])
    (source / "a.py").write_text("newer")
    report = mirror(source, dest)
    error = report.results[0].error
    assert report.exit_code == 123 and error and "a.py (4 B, written" in error.message and "--force" in str(error.hint)
    assert (dest / "a.py").read_text() == "node"
    forced = mirror(source, dest, force=True).results[0].data
    assert (dest / "a.py").read_text() == "newer" and forced["replaced"] == 1
    assert (Path(str(forced["aside"][0])) / "a.py").read_text() == "node"


def test_folders_links_and_modes_that_the_node_changed_are_set_again(source: Path, dest: Path) -> None:
    (source / "empty").mkdir(mode=0o750)
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    (source / "other").symlink_to("run.sh")
    ok(source, dest)
    (dest / "empty").rmdir()
    (dest / "run.sh").chmod(0o600)
    (dest / "link").unlink()
    data = ok(source, dest)
    assert (data["sent"], data["changed"]) == (0, 3) and snapshot(dest) == snapshot(source)
    (dest / "other").unlink()
    (dest / "other").symlink_to("elsewhere")
    data = ok(source, dest)
    assert (data["changed"], data["left"]) == (0, ["other"]) and os.readlink(dest / "other") == "elsewhere"
    assert ok(source, dest)["changed"] == 0


def test_gitignore_and_fleetignore(source: Path, dest: Path) -> None:
    (source / ".git").mkdir()
    (source / ".git" / "HEAD").write_text("ref")
    (source / ".gitignore").write_text("*.ckpt\n/out/\n!keep.ckpt\n")
    (source / ".fleetignore").write_text("big.bin\n")
    for name in ("a.ckpt", "keep.ckpt", "big.bin", "train.py"):
        (source / name).write_text(name)
    for folder in ("out", "sub/out", "sub/runs"):
        (source / folder).mkdir(parents=True)
        (source / folder / "f").write_text("f")
    (source / "sub" / "runs" / ".gitignore").write_text("*\n")
    (source / "sub" / ".gitignore").write_text("!a.ckpt\n")
    (source / "sub" / "a.ckpt").write_text("wanted here")
    ok(source, dest)
    assert set(snapshot(dest)) == {
        b".gitignore",
        b".fleetignore",
        b"keep.ckpt",
        b"train.py",
        b"sub",
        b"sub/.gitignore",
        b"sub/a.ckpt",
        b"sub/out",
        b"sub/out/f",
        b"sub/runs",
    }


def test_the_logs_of_runs_here_are_no_code(source: Path, dest: Path) -> None:
    (source / "a.py").write_text("a")
    first = ok(source, dest)
    RunFolder.create(source / "runs", "r").release()
    again = ok(source, dest)
    assert (again["changed"], again["deleted"], again["entries"]) == (0, 0, first["entries"]), again
    assert not (dest / "runs").exists()


def test_a_file_becomes_a_folder_and_back(source: Path, dest: Path) -> None:
    (source / "x").write_text("file")
    ok(source, dest)
    (source / "x").unlink()
    (source / "x").mkdir()
    (source / "x" / "y").write_text("inside")
    ok(source, dest)
    assert (dest / "x" / "y").read_text() == "inside"
    shutil.rmtree(source / "x")
    (source / "x").write_text("file again")
    ok(source, dest)
    assert (dest / "x").read_text() == "file again"


def test_a_folder_of_the_node_is_never_replaced(source: Path, dest: Path) -> None:
    (dest / "data").mkdir(parents=True)
    (dest / "data" / "set").write_text("the node's")
    (source / "data").write_text("a file here")
    report = mirror(source, dest)
    error = report.results[0].error
    assert report.exit_code == 123 and error and "data (a folder" in error.message
    assert (dest / "data" / "set").read_text() == "the node's"


def test_nothing_is_written_through_a_link_on_the_node(source: Path, dest: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    dest.mkdir(parents=True)
    (dest / "pkg").symlink_to(outside)
    (source / "pkg").mkdir()
    (source / "pkg" / "f").write_text("f")
    report = mirror(source, dest)
    assert report.exit_code == 123 and "pkg (a link" in str(report.results[0].error)
    assert list(outside.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder of another user")
@pytest.mark.parametrize("trick", ["folder", "link"])
def test_a_state_folder_that_somebody_else_made_is_refused(
    source: Path, dest: Path, tmp_path: Path, trick: str
) -> None:
    dest.mkdir(parents=True)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    state = dest.parent / f".{dest.name}.fleet-sync"
    if trick == "link":
        state.symlink_to(theirs)
    else:
        state.mkdir()
        os.chown(state, 12345, 12345)
    report = mirror(source, dest)
    assert report.exit_code == 1 and "made by another user" in str(report.results[0].error)
    assert not any(dest.iterdir()) and not any(theirs.iterdir())


def test_a_link_that_an_interrupted_switch_left_is_in_nobodys_way(source: Path, dest: Path) -> None:
    (source / "link").symlink_to("a")
    dest.mkdir(parents=True)
    state = dest.parent / f".{dest.name}.fleet-sync"
    state.mkdir()
    for left in (dest / "link.fleet-new", state / "link.new"):
        left.symlink_to("elsewhere")
    ok(source, dest)
    assert (dest / "link").readlink() == Path("a") and (dest / "link.fleet-new").readlink() == Path("elsewhere")


def test_one_folder_on_several_nodes_is_written_once(source: Path, dest: Path) -> None:
    for i in range(200):
        (source / f"f{i}").write_text(str(i) * 1000)
    report = mirror(source, dest, ("n1", "n2", "n3"))
    assert report.exit_code == 0
    assert sum(r.data.get("sent", 0) for r in report.results) == 200
    assert snapshot(dest) == snapshot(source)


def test_an_interrupted_switch_is_healed_by_the_next_sync(source: Path, dest: Path) -> None:
    (source / "a").write_text("a")
    ok(source, dest)
    (source / "b").write_text("b")
    stage = dest.parent / ".work.fleet-sync" / "stage"
    stage.mkdir()
    (stage / "b").write_text("half a fi")  # what a killed sync may leave
    ok(source, dest)
    assert snapshot(dest) == snapshot(source)
    assert not stage.exists()


def test_a_temporary_folder_with_a_long_name(source: Path, dest: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    (source / "a").write_bytes(b"a" * LARGE)
    subprocess.run(typed(source, dest), env={**os.environ, "TMPDIR": str(deep)}, check=True)
    assert snapshot(dest) == snapshot(source) and list(deep.iterdir()) == []


def test_a_change_of_few_files_leaves_the_rest_of_the_journal_as_it_is(source: Path, dest: Path) -> None:
    """Which would be written by every node, however little has changed."""
    for number in range(40):
        (source / f"f{number:02}").write_text("1")
    ok(source, dest)
    meta = os.fsencode(dest.parent / ".work.fleet-sync")

    def rows() -> dict[str, list[object]]:
        return {row[0]: row[6:] for row in rows_of(read_state(meta) or {})}

    def others(before: dict[str, list[object]]) -> set[str]:
        after = rows()
        return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}

    rest = (read_state(meta) or {})["rest"]
    for names, kept in (
        (["f03"], True),
        (["f03", "f04"], True),
        (["f05"], True),
        ([f"f{n:02}" for n in range(30)], False),
    ):
        before = rows()
        for name in names:
            (source / name).write_text(f"{names}")
        (dest / names[0]).touch()  # is looked at, and found as it was
        ok(source, dest)
        assert snapshot(dest) == snapshot(source) and others(before) == set(names)
        for name in names:
            assert rows()[name][0] == hashlib.sha256((source / name).read_bytes()).hexdigest()
        assert ((read_state(meta) or {})["rest"] == rest) is kept
    before = rows()
    (source / "f03").write_text("3")
    (source / "new").write_text("new")
    ok(source, dest)
    assert others(before) == {"f03", "new"} and ok(source, dest)["sent"] == 0
    (source / "f04").unlink()
    assert ok(source, dest)["deleted"] == 1 and snapshot(dest) == snapshot(source)
