"""The source of deepspeed: an sdist that pip fetches, and that fleet unpacks."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import threading
from pathlib import Path

import pytest

from fleet.errors import HostFailed
from fleet.ops.build.source import fetch_deepspeed, unpack
from tests.in_process import fleet_here


def sdist(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            data = b"text\n" if member.isreg() else b""
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.linkname = kind, mode, link
    return member


def test_an_sdist_is_unpacked(tmp_path: Path) -> None:
    good = sdist(
        tmp_path / "x-1.tar.gz",
        entry("x-1", tarfile.DIRTYPE, 0o755),
        entry("x-1/setup.py"),
        entry("x-1/bin/run", mode=0o4777),
        entry("x-1/empty", tarfile.DIRTYPE, 0),
    )
    inner = unpack(good, tmp_path / "to")
    assert inner == tmp_path / "to/x-1" and (inner / "setup.py").read_text() == "text\n"
    assert [stat.S_IMODE((inner / name).stat().st_mode) for name in ("setup.py", "bin/run")] == [0o644, 0o755]
    assert list((inner / "empty").iterdir()) == []


@pytest.mark.parametrize(
    "bad",
    [
        entry("../out"),
        entry("x-1/../../out"),
        entry("/tmp/fleet-out"),
        entry("x-1/link", tarfile.SYMTYPE, link="/etc"),
        entry("x-1/hard", tarfile.LNKTYPE, link="x-1/setup.py"),
        entry("x-1/dev", tarfile.CHRTYPE),
        entry("x-1/pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda member: str(member.name),
)
def test_an_sdist_writes_nothing_but_files_below_its_folder(bad: tarfile.TarInfo, tmp_path: Path) -> None:
    with pytest.raises(HostFailed, match="which no source has"):
        unpack(sdist(tmp_path / "x-1.tar.gz", entry("x-1/setup.py"), bad, entry("x-1/link/later")), tmp_path / "w/to")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()} == {
        "x-1.tar.gz",
        "w/to/x-1/setup.py",
    }


def test_two_builds_at_once_share_one_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second took the first one's source away while that was carried to a node."""
    tree = tmp_path / "deepspeed"
    tree.mkdir()
    setup = (
        f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom setuptools import setup\nsetup(name='deepspeed', version='1')\n"
    )
    (tree / "setup.py").write_text(setup)
    (tree / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: deepspeed\nVersion: 1\n")
    (tmp_path / "links").mkdir()
    with tarfile.open(tmp_path / "links/deepspeed-1.tar.gz", "w:gz") as archive:
        archive.add(tree, "deepspeed-1")
    for name, value in {"XDG_CACHE_HOME": "cache", "PIP_FIND_LINKS": "links", "PIP_LOG": "log"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    found = list[Path]()

    def build() -> None:
        found.append(fleet_here("h").run(lambda runtime: fetch_deepspeed("1", runtime)))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "log").read_text().count("Processing ") == 1
    assert found == [tmp_path / "cache/fleet/sources/deepspeed-1"] * 2
    assert not (tmp_path / "ran").exists(), "it runs on the node that builds"
    assert (found[0] / "setup.py").is_file() and len(list(found[0].parent.iterdir())) == 1


def test_what_is_no_sdist_is_said(tmp_path: Path) -> None:
    whole = sdist(tmp_path / "x-1.tar.gz", entry("x-1/setup.py")).read_bytes()
    for content in (b"", b"<html>", whole[:-20], whole[:40] + b"?" * 40):
        (tmp_path / "y.tar.gz").write_bytes(content)
        with pytest.raises(HostFailed, match="y.tar.gz is no sdist"):
            unpack(tmp_path / "y.tar.gz", tmp_path / "to")
