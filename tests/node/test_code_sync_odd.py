"""Code sync with sources and destinations that are not as they should be: a clear error, and nothing is lost."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fleet.delivery import mirror as code
from fleet.delivery import parcels
from fleet.delivery.tree import scan
from fleet.errors import FleetError, HostFailed, UsageError
from fleet.events import Event, Notice
from fleet.model import Host, Inventory
from fleet.ops import sync
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from fleet.transport.rsh import stage
from tests.node.test_code_sync import mirror, ok, snapshot


@pytest.fixture
def source(source: Path) -> Path:
    (source / "a.py").write_text("a")
    return source


def error_of(source: Path, dest: Path) -> FleetError:
    report = mirror(source, dest)
    error = report.results[0].error
    assert report.exit_code == 1 and error is not None and error.kind != "internal", error
    return error


# -- sources ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["missing", "file"])
def test_bad_sources(tmp_path: Path, dest: Path, kind: str) -> None:
    source = tmp_path / "s"
    if kind == "file":
        source.touch()
    with pytest.raises(UsageError):
        mirror(source, dest)
    assert not dest.exists()


@pytest.mark.parametrize("what", ["file", "folder"])
def test_an_unreadable_part_of_the_source(source: Path, dest: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = source / "secret"
    if what == "file":
        bad.touch(0o600)
        real = os.access  # root may read all
        monkeypatch.setattr(os, "access", lambda path, mode: os.fspath(path) != str(bad) and real(path, mode))
    else:
        bad.mkdir()
        real_scan = os.scandir

        def closed(path: Path) -> object:
            if Path(path) == bad:
                raise PermissionError(13, "Permission denied", str(bad))
            return real_scan(path)

        monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(UsageError, match="secret: Permission denied") as caught:
        mirror(source, dest)
    assert caught.value.hint and ".fleetignore" in caught.value.hint and not dest.exists()


LARGE = code.SMALL_BYTES + 1  # goes by rsync


@pytest.mark.parametrize("when", ["before it is sent", "after it was sent"])
def test_a_large_file_that_vanishes(source: Path, dest: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ok(source, dest)
    (source / "b.py").write_bytes(b"b" * LARGE)

    def send(*args: object, **more: object) -> None:
        if when == "before it is sent":
            (source / "b.py").unlink()
        stage(*args, **more)  # type: ignore[arg-type]
        if when == "after it was sent":
            (source / "b.py").unlink()

    monkeypatch.setattr(code.rsh, "stage", send)
    ok(source, dest)  # the source was read again
    assert snapshot(dest).keys() == {b"a.py"}


def test_a_large_file_that_grows_while_it_is_sent(source: Path, dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok(source, dest)
    (source / "a.py").write_bytes(b"b" * LARGE)

    def send(*args: object, **more: object) -> None:
        stage(*args, **more)  # type: ignore[arg-type]
        with (source / "a.py").open("a") as f:
            f.write(", and longer still")

    monkeypatch.setattr(code.rsh, "stage", send)
    ok(source, dest)
    sent = (dest / "a.py").read_bytes()
    assert len(sent) >= LARGE and (source / "a.py").read_bytes().startswith(sent)


def test_a_large_file_that_changes_while_it_is_read_never_gets_its_final_name(
    source: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "a").write_bytes(b"a" * LARGE)
    from fleet.delivery import tree

    monkeypatch.setattr(tree.Tree, "file_digest", lambda self, path: "0" * 64)
    for _ in range(2):  # what is staged of it is not taken for what was verified
        report = mirror(source, dest)
        assert report.exit_code == 1 and "changed while it was read" in str(report.results[0].error)
        assert not (dest / "a").exists()
    monkeypatch.undo()
    assert ok(source, dest)["sent"] == 1 and snapshot(dest) == snapshot(source)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.unlink(),
        lambda path: path.write_text("longer"),
        lambda path: path.write_text("c"),
        lambda path: (path.unlink(), path.symlink_to("a.py")),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_a_small_file_that_changes_before_it_is_sent_is_read_again(
    source: Path, dest: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    ok(source, dest)
    (source / "b.py").write_text("b")
    pack, rounds = parcels.Parcels._pack, []

    def late(self: parcels.Parcels, items: Sequence[parcels.Item]) -> bytes:
        rounds.append(items)
        if len(rounds) == 1:
            change(source / "b.py")
        return pack(self, items)

    monkeypatch.setattr(parcels.Parcels, "_pack", late)
    ok(source, dest)
    assert snapshot(dest) == snapshot(source)


@pytest.mark.parametrize("step", [10, -10])
def test_a_file_that_changes_all_the_time_is_named(
    source: Path, dest: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    ok(source, dest)
    (source / "a.py").write_text("new")
    pack, rounds = parcels.Parcels._pack, []

    def late(self: parcels.Parcels, items: Sequence[parcels.Item]) -> bytes:
        rounds.append(items)
        (source / "a.py").write_text(str(len(rounds)) * (50 + step * len(rounds)))  # longer, too, and another text
        return pack(self, items)

    monkeypatch.setattr(parcels.Parcels, "_pack", late)
    error = error_of(source, dest)
    assert "a.py changed while it was read" in error.message and len(rounds) == code.ROUNDS
    assert error.hint and ".fleetignore" in error.hint and "nothing was switched in" in error.hint
    assert (dest / "a.py").read_text() == "a"


def test_a_log_that_grows_is_sent_as_far_as_it_was(source: Path, dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / "launch.log").write_text("begin\n")
    pack = parcels.Parcels._pack

    def late(self: parcels.Parcels, items: Sequence[parcels.Item]) -> bytes:
        with (source / "launch.log").open("a") as file:
            file.write("more\n")
        return pack(self, items)

    monkeypatch.setattr(parcels.Parcels, "_pack", late)
    said: list[Event] = []
    plan = sync.plan(Inventory((Host("n1", "127.0.0.1", workdir=str(dest)),)), Sync(source, None))
    report = sync.run(plan, Runtime(LocalTransport(), emit=said.append))
    assert report.exit_code == 0 and (dest / "launch.log").read_text() == "begin\nmore\n"
    assert [e.message for e in said if isinstance(e, Notice) and "launch.log" in str(e.message)] == [
        "sent as far as it was when it was found, as it grows: launch.log"
    ]


def test_without_rsync_large_files_come_in_parcels(source: Path, dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(3 * parcels.PARCEL_BYTES + 5)
    (source / "large").write_bytes(content)
    (source / "exactly").write_bytes(content[: parcels.PARCEL_BYTES])
    (source / "new").mkdir()
    (source / "new/large").write_bytes(content[::-1])
    monkeypatch.setattr(code.shutil, "which", lambda name: None)
    assert ok(source, dest)["sent"] == 4
    assert snapshot(dest) == snapshot(source)
    (source / "large").write_bytes(content[1:])
    assert ok(source, dest)["sent"] == 1
    assert snapshot(dest) == snapshot(source)


def test_a_new_folder_of_small_and_large_files_links_and_folders(source: Path, dest: Path) -> None:
    (source / "new/empty").mkdir(parents=True)
    (source / "new/deep/er").mkdir(parents=True, mode=0o700)
    (source / "new/deep/er/small").write_text("s")
    (source / "new/only/large").mkdir(parents=True)
    for name in ("new/deep/large", "new/only/large/file"):
        (source / name).write_bytes(os.urandom(LARGE))
    (source / "new/deep/link").symlink_to("er")
    (source / "new/deep/er").chmod(0o750)
    ok(source, dest)
    assert snapshot(dest) == snapshot(source)
    assert not (dest.parent / ".work.fleet-sync/stage").exists()


def test_links_that_lead_to_each_other_are_no_source(tmp_path: Path, dest: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for source in (tmp_path / "loop", Path("/" + "n" * 300)):
        with pytest.raises(UsageError):
            mirror(source, dest)


def test_what_fleet_keeps_beside_destinations_is_not_carried(source: Path, dest: Path) -> None:
    (source / ".x.fleet-data").mkdir()
    (source / ".x.fleet-data/lock").touch()
    (source / ".fleet-sync").mkdir()
    ok(source, dest)
    assert snapshot(dest).keys() == {b"a.py"}


@pytest.mark.parametrize("name", ["#autosave#", ";", "-x", "#"])
def test_names_that_rsync_takes_for_something_else(source: Path, dest: Path, name: str) -> None:
    (source / name).write_bytes(os.urandom(LARGE))
    ok(source, dest)
    assert snapshot(dest) == snapshot(source)


def test_an_interrupted_sync_goes_on_where_it_was(source: Path, dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(40):
        (source / f"f{i:02}").write_bytes(os.urandom(100_000))
    pack, packed = parcels.Parcels._pack, []

    def broken(self: parcels.Parcels, items: Sequence[parcels.Item]) -> bytes:
        packed.append(items)
        if len(packed) == 3:
            raise HostFailed("cut short")
        return pack(self, items)

    monkeypatch.setattr(parcels.Parcels, "_pack", broken)
    assert "cut short" in str(mirror(source, dest).results[0].error) and not any(dest.glob("f*"))
    monkeypatch.setattr(parcels.Parcels, "_pack", pack)
    until = time.monotonic() + 300  # what was on its way is still being unpacked
    while len(list((dest.parent / ".work.fleet-sync/stage").glob("f*"))) < 20 and time.monotonic() < until:
        time.sleep(0.05)
    (source / "f03").write_bytes(b"changed meanwhile")
    assert 41 - 21 <= ok(source, dest)["sent"] < 41 - 15  # type: ignore[operator]
    assert snapshot(dest) == snapshot(source)


def test_what_is_neither_file_folder_nor_link_is_left_out_and_told(source: Path, dest: Path) -> None:
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(source / "sock"))
        report = mirror(source, dest)
    assert report.ok and report.data["skipped"] == ["pipe", "sock"]
    assert snapshot(dest).keys() == {b"a.py"}


def test_links_that_loop_or_lead_out_are_carried_as_links(source: Path, dest: Path, tmp_path: Path) -> None:
    (source / "self").symlink_to("self")
    (source / "up").symlink_to("..")
    (source / "out").symlink_to(tmp_path)
    (source / "ring").mkdir()
    (source / "ring/back").symlink_to("../ring")
    ok(source, dest)
    assert snapshot(dest) == snapshot(source)
    assert ok(source, dest)["sent"] == 0


def test_an_empty_source_takes_away_what_was_delivered_and_only_that(source: Path, dest: Path) -> None:
    ok(source, dest)
    (dest / "model.pt").write_text("precious")
    (source / "a.py").unlink()
    data = ok(source, dest)
    assert data["deleted"] == 1 and snapshot(dest).keys() == {b"model.pt"}


@pytest.mark.parametrize("line", ["\\", "a\\", "[z", "[[:no:]]"])
def test_an_ignore_line_that_is_no_pattern_is_named(source: Path, line: str) -> None:
    (source / ".gitignore").write_text(f"*.pt\n{line}\n")
    assert len(scan(source).entries) == 2  # git passes over it
    (source / ".fleetignore").write_text(f"*.pt\n{line}\n")
    with pytest.raises(UsageError) as caught:
        scan(source)
    assert str(caught.value).startswith(f"{source}/.fleetignore:2: not a pattern") and caught.value.hint


def test_ignore_files_as_git_reads_them(source: Path) -> None:
    (source / ".gitignore").write_text("# a comment\n\n*.log\n!keep.log\nbuild/\n/top\n**/deep/x\n\\#odd\ntrail \n")
    (source / ".fleetignore").mkdir()  # a folder of that name is none of ours
    for name in ("a.log", "keep.log", "build/x", "sub/build", "top", "sub/top", "sub/deep/x", "#odd", "trail"):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert {e[0] for e in scan(source).entries} == {
        ".gitignore",
        ".fleetignore",
        "a.py",
        "keep.log",
        "sub",
        "sub/build",
        "sub/top",
        "sub/deep",
    }


# -- destinations -----------------------------------------------------------------------------------------------
def test_destination_is_a_file(source: Path, dest: Path) -> None:
    dest.parent.mkdir()
    dest.write_text("a file")
    report = mirror(source, dest)
    assert report.exit_code == 1 and "is a file" in str(report.results[0].error)
    assert dest.read_text() == "a file"


def test_root_is_refused_as_destination(source: Path) -> None:
    report = mirror(source, Path("/"))
    assert report.exit_code == 1 and "cannot be a destination" in str(report.results[0].error)


@pytest.mark.parametrize("name", ["with space", "new\nline", "q'u\"o$te;", "-rf", "*", "latin-\udce9"])
def test_awkward_names_of_the_destination(source: Path, dest: Path, name: str) -> None:
    ok(source, dest / name)
    assert (dest / name / "a.py").read_text() == "a" and ok(source, dest / name)["sent"] == 0


def test_dots_in_the_destination_mean_what_they_mean(source: Path, dest: Path) -> None:
    (dest / "x").mkdir(parents=True)
    ok(source, dest / "x/../y/.")
    assert (dest / "y/a.py").read_text() == "a" and sorted(p.name for p in (dest / "x").iterdir()) == []


@pytest.mark.parametrize(
    "to, said",
    [
        ("~nobody-of-that-name/x", "there is no user ~nobody-of-that-name"),
        ("/proc/fleet", "cannot make /proc/fleet"),
        ("/sys/kernel", "cannot make /sys/.kernel.fleet-sync"),
        ("/dev/null/x", "/dev/null is a file, in the way of this folder"),
    ],
)
def test_places_where_nothing_can_be_written(source: Path, to: str, said: str) -> None:
    error = error_of(source, Path(to))
    assert said in error.message and error.hint


def test_a_destination_that_is_a_ring_of_links(source: Path, dest: Path) -> None:
    dest.parent.mkdir()
    dest.symlink_to(dest.name)
    assert "is a link that leads nowhere" in error_of(source, dest).message


def test_a_destination_behind_a_link_is_the_folder_it_leads_to(source: Path, dest: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    dest.parent.mkdir()
    dest.symlink_to(tmp_path / "real")
    ok(source, dest)
    assert dest.is_symlink() and (tmp_path / "real/a.py").read_text() == "a"
