"""Code sync with sources and destinations that are not as they should be: a clear error, and nothing is lost."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleet.delivery.mirror import ROUNDS
from fleet.delivery.parcels import Parcels
from fleet.delivery.tree import scan
from fleet.errors import FleetError, HostFailed, UsageError
from fleet.events import Event, Notice
from fleet.model import Host, Inventory
from fleet.node.delivery import code_sync
from fleet.node.delivery.stage import BLOCK, Stage
from fleet.ops import sync
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.node.nodes import until
from tests.node.seams import Tap, at
from tests.node.test_code_sync import LARGE, mirror, ok, snapshot, typed

pytestmark = pytest.mark.usefixtures("own_home")

NEED = b'"event": "need"'  # the node has said what it lacks
BLOCK_OP = b'{"op": "block"'


@pytest.fixture
def source(source: Path) -> Path:
    (source / "a.py").write_text("a")
    return source


def error_of(source: Path, dest: Path, transport: LocalTransport | None = None) -> FleetError:
    report = mirror(source, dest, transport=transport)
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


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up what root may")
@pytest.mark.parametrize("what", ["file", pytest.param("folder", marks=pytest.mark.slow)])
def test_an_unreadable_part_of_the_source(source: Path, dest: Path, what: str) -> None:
    bad = source / "secret"
    bad.touch() if what == "file" else bad.mkdir()
    bad.chmod(0)
    may_less = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    done = subprocess.run([*may_less, *typed(source, dest)], capture_output=True, text=True)
    assert done.returncode == 2 and "secret: Permission denied" in done.stderr
    assert ".fleetignore" in done.stderr and not dest.exists()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_large_file_that_vanishes_when_it_is_sent(source: Path, dest: Path, when: str) -> None:
    ok(source, dest)
    gone = (source / "b.py").unlink
    (source / "b.py").write_bytes(b"b" * LARGE)
    ok(source, dest, Tap(received=at(NEED, gone)) if when == "before" else Tap(sending=at(BLOCK_OP, gone)))
    assert snapshot(dest).keys() == {b"a.py"}, "the source was read again"


def test_a_large_file_that_grows_while_it_is_sent(source: Path, dest: Path) -> None:
    ok(source, dest)
    (source / "a.py").write_bytes(b"b" * LARGE)

    def grow() -> None:
        with (source / "a.py").open("ab") as file:
            file.write(b", and longer still")

    ok(source, dest, Tap(sending=at(BLOCK_OP, grow, times=9)))
    sent = (dest / "a.py").read_bytes()
    assert len(sent) >= LARGE and (source / "a.py").read_bytes().startswith(sent)


@pytest.mark.parametrize(
    "change",
    [
        lambda old: old[:BLOCK] + b"x" * 9 + old[BLOCK + 9 :],
        lambda old: old + b"more",
        lambda old: old[: 2 * BLOCK],
        lambda old: old[1:],
        lambda old: b"short",
    ],
)
def test_of_a_large_file_the_blocks_go_that_have_changed(
    source: Path, dest: Path, change: Callable[[bytes], bytes]
) -> None:
    old = os.urandom(2 * BLOCK + 77)
    (source / "large").write_bytes(old)
    ok(source, dest)
    new, blocks = change(old), list[int]()
    (source / "large").write_bytes(new)
    pieces = [old[at : at + BLOCK] for at in range(0, len(old), BLOCK)]
    differ = [n for n in range(-(-len(new) // BLOCK)) if [new[n * BLOCK :][:BLOCK]] != pieces[n : n + 1]]

    def sending(data: bytes) -> None:
        if data.startswith(BLOCK_OP):
            blocks.append(json.loads(data.partition(b"\n")[0])["at"] // BLOCK)

    ok(source, dest, Tap(sending=sending))
    assert snapshot(dest) == snapshot(source)
    assert sorted(set(blocks)) == (differ if len(new) > BLOCK else [])


def test_a_node_that_copies_what_it_has_gets_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of GB that takes longer than a node may beat and get nowhere."""
    (tmp_path / "large").write_bytes(b"l" * 4 * code_sync.CHUNK)
    stage = Stage(os.fsencode(tmp_path))
    large = code_sync.Large(
        SimpleNamespace(stage=stage, full=lambda path: os.fsencode(tmp_path / path))  # type: ignore[arg-type]
    )
    moves: list[int] = []
    monkeypatch.setattr(code_sync, "count_progress", lambda: moves.append(large.at))
    large.fill(["large", "f", 0o644, 4 * code_sync.CHUNK, 1, ""], 4 * code_sync.CHUNK)
    large.finish()
    assert moves == [n * code_sync.CHUNK for n in range(4)]
    assert (tmp_path / "stage/large").read_bytes() == (tmp_path / "large").read_bytes()


def test_what_has_come_of_a_large_file_outlives_the_next_kill_too(tmp_path: Path) -> None:
    came = tmp_path / "stage/large"
    came.parent.mkdir()
    came.write_bytes(b"l" * 4 * code_sync.CHUNK)
    stage = Stage(os.fsencode(tmp_path))
    large = code_sync.Large(SimpleNamespace(stage=stage, full=stage.at))  # type: ignore[arg-type]
    entry = ["large", "f", 0o644, 5 * code_sync.CHUNK, 1, ""]
    large.fill(entry, code_sync.CHUNK)  # here the next kill comes
    assert came.read_bytes() == b"l" * 4 * code_sync.CHUNK
    for piece in (b"x", bytes(1)):
        large.put(piece * code_sync.CHUNK)
    large.fill(entry, 4 * code_sync.CHUNK)
    large.put(b"e" * code_sync.CHUNK)
    large.finish()
    parts = [came.read_bytes()[n * code_sync.CHUNK :][: code_sync.CHUNK] for n in range(5)]
    assert parts == [each * code_sync.CHUNK for each in (b"l", b"x", bytes(1), b"l", b"e")]


def test_what_has_come_of_a_large_file_is_not_sent_again(source: Path, dest: Path) -> None:
    (source / "large").write_bytes(os.urandom(2 * BLOCK + 77))
    sent = list[int]()

    def cut(data: bytes) -> None:
        if data.startswith(BLOCK_OP):
            sent.append(json.loads(data.partition(b"\n")[0])["at"])
            if sent[-1] >= 2 * BLOCK and len(sent) < 99:
                sent.extend([0] * 99)
                raise HostFailed("cut short")

    assert "cut short" in str(mirror(source, dest, transport=Tap(sending=cut)).results[0].error)
    staged = dest.parent / ".work.fleet-sync/stage/large"
    until(lambda: staged.exists() and staged.stat().st_size == 2 * BLOCK)  # it is still being written
    del sent[:]
    sent.extend([0] * 99)
    ok(source, dest, Tap(sending=cut))
    assert sent[99:] == [2 * BLOCK] and snapshot(dest) == snapshot(source)


def test_what_a_node_has_in_place_of_a_large_file_is_not_sent_after_kills_either(source: Path, dest: Path) -> None:
    data = bytearray(os.urandom(5 * BLOCK + 77))
    (source / "large").write_bytes(data)
    ok(source, dest)
    for where in (BLOCK, 4 * BLOCK):
        data[where] ^= 1
    (source / "large").write_bytes(data)
    sent = set[int]()

    def note(data: bytes) -> None:
        if data.startswith(BLOCK_OP):
            sent.add(json.loads(data.partition(b"\n")[0])["at"] // BLOCK)

    def cut(data: bytes) -> None:
        note(data)
        if 4 in sent:
            raise HostFailed("cut short")

    staged = dest.parent / ".work.fleet-sync/stage/large"
    for blocks in ({1, 4}, {4}):  # what was staged by then is not sent again, nor what is in place after that
        assert "cut short" in str(mirror(source, dest, transport=Tap(sending=cut)).results[0].error)
        assert sent == blocks
        until(lambda: staged.exists() and staged.stat().st_size >= 2 * BLOCK)
        with staged.open("ab") as file:  # a kill in the middle of a block
            file.write(b"y" * 9)
        sent.clear()
    ok(source, dest, Tap(sending=note))
    assert sent == {4} and snapshot(dest) == snapshot(source)


@pytest.mark.parametrize("rests", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_large_file_that_changes_while_it_is_read_never_gets_its_final_name(
    source: Path, dest: Path, monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    """rests: what comes of it, once it has been sent, is what it was before: only its digest differs on the node."""
    (source / "a").write_bytes(b"a" * LARGE)
    info, digests, numbers = (source / "a").stat(), Parcels.digests, iter(range(1, 99))

    def write(last: bytes = b"") -> None:
        """Other bytes each time: with the same ones again it would only be touched."""
        with (source / "a").open("r+b") as file:
            file.seek(LARGE - 1)
            file.write(last or bytes([next(numbers)]))
        if rests:
            os.utime(source / "a", ns=(info.st_atime_ns, info.st_mtime_ns))

    def then(self: Parcels, paths: Sequence[str]) -> dict[str, str]:
        write(b"a" if rests else b"")
        return digests(self, paths)

    with monkeypatch.context() as patch:
        patch.setattr("fleet.delivery.mirror.background", lambda *_: None)
        patch.setattr(Parcels, "digests", then)
        for _ in range(2):  # what is staged of it is not taken for what was verified
            report = mirror(source, dest, transport=Tap(received=at(NEED, write, times=99)))
            assert report.exit_code == 1 and "changed while it was read" in str(report.results[0].error)
            assert not (dest / "a").exists()
    assert ok(source, dest)["sent"] and snapshot(dest) == snapshot(source)


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
    source: Path, dest: Path, change: Callable[[Path], object]
) -> None:
    ok(source, dest)
    (source / "b.py").write_text("b")
    ok(source, dest, Tap(received=at(NEED, lambda: change(source / "b.py"))))
    assert snapshot(dest) == snapshot(source)


@pytest.mark.parametrize("step", [10, -10])
def test_a_file_that_changes_all_the_time_is_named(source: Path, dest: Path, step: int) -> None:
    ok(source, dest)
    (source / "a.py").write_text("new")
    rounds: list[int] = []

    def change() -> None:
        rounds.append(len(rounds))
        (source / "a.py").write_text(str(len(rounds)) * (50 + step * len(rounds)))  # longer, too, and another text

    error = error_of(source, dest, Tap(received=at(NEED, change, times=99)))
    assert "a.py changed while it was read" in error.message and len(rounds) == ROUNDS
    assert error.hint and ".fleetignore" in error.hint and "no file was replaced" in error.hint
    assert (dest / "a.py").read_text() == "a"


def test_a_log_that_grows_is_sent_as_far_as_it_was(source: Path, dest: Path) -> None:
    (source / "launch.log").write_text("begin\n")

    def grow() -> None:
        with (source / "launch.log").open("a") as file:
            file.write("more\n")

    said: list[Event] = []
    plan = sync.plan(Inventory((Host("n1", "127.0.0.1", workdir=str(dest)),)), Sync(source, None))
    report = sync.run(plan, Runtime(Tap(received=at(NEED, grow, times=99)), emit=said.append))
    assert report.exit_code == 0 and (dest / "launch.log").read_text() == "begin\nmore\n"
    assert [e.message for e in said if isinstance(e, Notice) and "launch.log" in str(e.message)] == [
        "sent up to the size that it had when it was listed, as it grows: launch.log"
    ]


@pytest.mark.parametrize("size", [9, LARGE])
def test_a_file_that_is_touched_all_the_time_is_sent(source: Path, dest: Path, size: int) -> None:
    (source / "a.py").write_bytes(b"a" * size)
    said: list[Event] = []
    times = iter(range(1, 999))
    touched = at(NEED, lambda: os.utime(source / "a.py", (now := next(times), now)), times=99)
    plan = sync.plan(Inventory((Host("n1", "127.0.0.1", workdir=str(dest)),)), Sync(source, None))
    report = sync.run(plan, Runtime(Tap(received=touched), emit=said.append))
    assert report.exit_code == 0 and (dest / "a.py").read_bytes() == b"a" * size
    assert not any(isinstance(event, Notice) for event in said)


def test_large_files_need_no_rsync(source: Path, dest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(BLOCK + 5)
    (source / "large").write_bytes(content)
    (source / "exactly").write_bytes(content[:BLOCK])
    (source / "new").mkdir()
    (source / "new/large").write_bytes(content[::-1])
    (tmp_path / "bin").mkdir()
    for name in ("git", "python3"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name, path="/usr/bin")))
    (tmp_path / "bin/sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
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


def test_an_interrupted_sync_goes_on_where_it_was(source: Path, dest: Path) -> None:
    for i in range(40):
        (source / f"f{i:02}").write_bytes(os.urandom(100_000))
    parcels: list[bytes] = []

    def cut(data: bytes) -> None:
        if data.startswith(b'{"op": "parcel"'):
            parcels.append(data)
            if len(parcels) == 3:
                raise HostFailed("cut short")

    assert "cut short" in str(mirror(source, dest, transport=Tap(sending=cut)).results[0].error)
    assert not any(dest.glob("f*"))
    staged = dest.parent / ".work.fleet-sync/stage"
    until(lambda: len(list(staged.glob("f*"))) >= 20)  # what was on its way is still being unpacked
    (source / "f03").write_bytes(b"changed meanwhile")
    assert 41 - 22 <= ok(source, dest)["sent"] < 41 - 15  # type: ignore[operator]
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


def by_root_in_mounts(line: str) -> str:
    """Returns what this line of shell prints in mounts of its own."""
    done = subprocess.run(["unshare", "-m", "sh", "-exc", line], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
@pytest.mark.parametrize("mount", ["-t tmpfs none", "--bind {}/disk"], ids=["tmpfs", "bind"])
@pytest.mark.parametrize("data", [False, True], ids=["code", "data"])
def test_a_file_system_that_is_mounted_inside_the_destination(
    source: Path, dest: Path, tmp_path: Path, mount: str, data: bool
) -> None:
    for folder in (source / "set/new/deep", dest / "set", tmp_path / "disk"):
        folder.mkdir(parents=True)
    (source / "set/link").symlink_to("new")
    (source / "set/empty").touch()
    for path in ("a", "set/a", "set/new/deep/a", "set/large"):
        (source / path).write_bytes(os.urandom(LARGE if path == "set/large" else 9))
    fleet = typed(source, dest)
    sync = shlex.join([*fleet[:-3], "--data", f"{source}:{dest}"] if data else fleet)
    (source.parent / "hostfile").write_text("127.0.0.1\n")
    same = f"diff -r --no-dereference -x '.*fleet-*' {source} {dest}"
    printed = by_root_in_mounts(
        f"mount {mount.format(tmp_path)} {dest}/set; {sync}; {same}; ls -A {dest}/set\n"
        f"echo theirs > {dest}/set/a; echo new > {source}/set/a; {sync} --force; {same}\n"
        f"cat {dest}/set/.*.fleet-stage/replaced/*/set/a; find {dest}/set/.*.fleet-stage -type f | wc -l"
    )
    assert ".fleet-stage" not in printed.partition("theirs")[0]
    assert printed.split()[-2:] == ["theirs", "1"]
