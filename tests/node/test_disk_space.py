"""Disks that run full heal when there is room, files with holes keep them, what changes while it is sent is named."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.delivery.tree import reading
from fleet.errors import HostFailed
from fleet.transport import program
from fleet.transport.local import LocalTransport
from tests.changed import changed
from tests.node.test_chain import Fleet
from tests.node.test_code_sync import mirror, node_with, ok

pytestmark = pytest.mark.usefixtures("own_home")
MB = 1 << 20
Disk = Callable[[str], Path]

NO_LOOK = """
from fleet.node.delivery import code_sync
code_sync.check_space = lambda needs, hint: None
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A small file system of its own at NODE/work's place."""
    point = tmp_path / "node"

    def mount(options: str) -> Path:
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], check=True)
        return point / "work"

    yield mount
    subprocess.run(["umount", str(point)], check=True)


def refused(source: Path, dest: Path, transport: LocalTransport | None = None) -> HostFailed:
    error = mirror(source, dest, transport=transport).results[0].error
    assert isinstance(error, HostFailed)
    return error


def test_inodes_that_ran_out(source: Path, disk: Disk) -> None:
    dest = disk("size=8m,nr_inodes=40")
    for n in range(60):
        (source / f"{n:02}").write_text(str(n))
    assert "60 files are to be made" in refused(source, dest).message
    # as when others use them up meanwhile
    assert "No space left" in refused(source, dest, node_with(NO_LOOK)).message
    for n in range(10, 60):
        (source / f"{n:02}").unlink()
    (source / "new").mkdir()
    for n in range(18):
        (source / "new" / str(n)).write_text("x")
    assert ok(source, dest)["entries"] == 29
    assert len(list(dest.rglob("*"))) == 29


def test_bytes_that_ran_out(source: Path, disk: Disk) -> None:
    """What has come of a large file is no room for it: it is written anew beside that."""
    dest = disk("size=8m")
    (source / "big").write_bytes(os.urandom(12 * MB))
    assert not mirror(source, dest, transport=node_with(NO_LOOK)).ok
    (source / "big").write_bytes(os.urandom(5 * MB))
    assert ok(source, dest)["sent"] == 1
    (source / "big").write_bytes(os.urandom(6 * MB))
    said = refused(source, dest)
    assert "6.0 MiB are to be written" in said.message and said.hint


def holes(folder: Path) -> dict[str, bytes]:
    """Files with holes at their beginning, in their middle, at their end, and nothing but that."""
    made = {
        "first": bytes(9 * MB) + b"x",
        "end": b"x" + bytes(9 * MB),
        "none": bytes(12 * MB),
        "small": b"x" + bytes(700_000) + b"y",
        "tiny": bytes(3),
        "middle": b"x" * 5000 + bytes(11 * MB) + b"y" * 77,
    }
    folder.mkdir(exist_ok=True)
    for name, data in made.items():
        with (folder / name).open("wb") as file:
            for at in range(0, len(data), 4096):
                if data[at : at + 4096].strip(b"\0"):
                    file.seek(at)
                    file.write(data[at : at + 4096])
            file.truncate(len(data))
    return made


def check_holes(folder: Path, made: dict[str, bytes]) -> None:
    for name, data in made.items():
        assert (folder / name).read_bytes() == data, name
        assert (folder / name).stat().st_blocks * 512 <= 64 << 10, name


def test_code_keeps_its_holes(source: Path, disk: Disk) -> None:
    dest = disk("size=4m")
    made = holes(source)
    ok(source, dest)
    check_holes(dest, made)


def test_data_keeps_its_holes_also_when_it_was_cut_short(tmp_path: Path, disk: Disk) -> None:
    disk("size=8m")
    fleet = Fleet(tmp_path / "node", 2)
    made = holes(tmp_path / "set")
    fleet.ok(tmp_path / "set")
    for name in fleet.names:
        check_holes(fleet.path(name, "set"), made)
    for path in fleet.path("n2", "set").iterdir():
        path.unlink()
    fleet.ok(tmp_path / "set")
    check_holes(fleet.path("n2", "set"), made)


def test_hard_links_are_told(source: Path, dest: Path) -> None:
    (source / "a").write_text("1")
    os.link(source / "a", source / "b")
    assert mirror(source, dest).data["hard_links"] == 2
    (source / "b").unlink()
    assert mirror(source, dest).data["hard_links"] == 0


def test_a_file_that_vanishes_while_the_source_is_read(source: Path) -> None:
    with pytest.raises(HostFailed, match="a vanished while the source was read"), reading(source, "", ""):
        os.stat(source / "a")


def test_what_came_of_zeros_is_not_to_be_written_again(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are holes here, though the source has none: they take no blocks."""
    disk("size=8m")
    fleet, source = Fleet(tmp_path, 1), tmp_path / "set"
    (tmp_path / "n1").symlink_to(tmp_path / "node")
    source.mkdir()
    (source / "zeros").write_bytes(bytes(12 * MB))
    dies = """
import os
from fleet.node.delivery import add, store
add.check_space = lambda needs, hint: None
store.file_digest = lambda *args: os._exit(9)
"""
    text, honest = changed("delivery.chain.member", dies), program.shipped
    with monkeypatch.context() as patch:
        patch.setattr(program, "shipped", lambda name: text if name == "delivery.chain.member" else honest(name))
        assert not fleet.send(source).ok
    [staged] = (tmp_path / "node").rglob("zeros")
    assert "stage" in staged.parts and staged.stat().st_size == 12 * MB
    fleet.ok(source)
    assert fleet.path("n1", "set", "zeros").read_bytes() == bytes(12 * MB)
