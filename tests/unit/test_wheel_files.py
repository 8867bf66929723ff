"""Wheels as files: what they say, and which of them are refused."""

from __future__ import annotations

import base64
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.delivery.tree import scan
from fleet.errors import Interrupted, UsageError
from fleet.ops.wheels.wheel import read_folder, read_wheel
from tests.in_process import fleet_here
from tests.peak import LIMIT_MIB, peak_of
from tests.wheelmaker import make_wheel


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_what_a_wheel_says(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "My_Pkg", "1.0+cu12", requires=["numpy>=1.2"])
    wheel = read_wheel(path)
    assert (wheel.name, wheel.version, wheel.modules) == ("my-pkg", "1.0+cu12", ("My_Pkg",))
    assert wheel.requires == ("numpy>=1.2",) and wheel.tags == {"py3-none-any"}
    # the second time it comes from the note; the same in every field
    assert read_wheel(path) == wheel


def test_the_note_is_of_this_file_only(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", "1.0")
    before = read_wheel(path)
    make_wheel(tmp_path, "a", "1.0", files={"a.py": "changed = True\n"})
    after = read_wheel(path)
    assert after.sha256 != before.sha256 and after.identity != before.identity


def test_the_module_called_like_the_distribution_is_imported(tmp_path: Path) -> None:
    info = "t-1.dist-info/top_level.txt"
    assert read_wheel(
        make_wheel(tmp_path, "t", "1", files={"t.py": "", "tests/__init__.py": "", info: "tests\nt\n"})
    ).modules == ("t",)
    assert read_wheel(
        make_wheel(tmp_path, "dash_ed", "1", files={"_x.so": "", "other.cpython-311.so": ""})
    ).modules == ("other",)


@given(at=st.integers(min_value=0), cut=st.booleans())
def test_a_damaged_wheel_is_named(tmp_path_factory: pytest.TempPathFactory, at: int, cut: bool) -> None:
    folder = tmp_path_factory.mktemp("damage")
    path = make_wheel(folder, "a", "1.0", files={"a.py": "x = 1\n" * 50})
    good = read_wheel(path)
    data = bytearray(path.read_bytes())
    at %= len(data)
    if cut:
        del data[at:]
    else:
        data[at] ^= 0xFF
    path.write_bytes(data)
    try:
        # a bit that means nothing (a time stamp) may change unseen; the content may not
        assert read_wheel(path).identity == good.identity
    except UsageError as error:
        assert "a-1.0-py3-none-any.whl" in error.message and error.hint
    assert not cut or at == len(data) or path.stat().st_size == at


@pytest.mark.parametrize("cut", [1, 100, -1, -30])
def test_a_truncated_wheel_is_refused(tmp_path: Path, cut: int) -> None:
    path = make_wheel(tmp_path, "a", "1.0")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UsageError, match=r"a-1\.0-py3-none-any\.whl: damaged"):
        read_wheel(path)


def test_a_flipped_bit_in_a_file_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", "1.0", files={"a.py": "y" * 40})
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match="damaged"):
        read_wheel(path)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no wheels"):
        read_folder(tmp_path)
    (tmp_path / "pkg-1.0.tar.gz").write_bytes(b"")
    with pytest.raises(UsageError, match="source distribution") as caught:
        read_folder(tmp_path)
    assert "fleet build ./pkg-1.0" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="source distribution"):
        fleet_here("a").plan.sync_wheels(tmp_path / "pkg-1.0.tar.gz")
    with pytest.raises(UsageError, match="does not exist"):
        fleet_here("a").plan.sync_wheels(tmp_path / "nowhere")


def test_reading_ends_once_it_is_interrupted(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", files={"a.txt": base64.b64encode(os.urandom(24 << 20)).decode()})
    reads: list[int] = []
    with pytest.raises(Interrupted):
        read_wheel(path, lambda: reads.append(1) or len(reads) > 20)
    assert len(reads) == 21
    assert read_wheel(path, lambda: reads.append(1) or False).modules == () and len(reads) > 60  # asked all along


def test_a_renamed_wheel(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", "1.0")
    with pytest.raises(UsageError, match="not the name of a wheel"):
        read_wheel(path.rename(tmp_path / "latest.whl"))


def edit(path: Path, change: dict[str, str | None]) -> Path:
    """The wheel with files of other text, without those that are None, and with new ones."""
    with zipfile.ZipFile(path) as archive:
        texts: dict[str, str | None] = {name: archive.read(name).decode() for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**texts, **change}.items():
            if text is not None:
                archive.writestr(name, text)
    return path


INFO = "a-1.0.dist-info"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({f"{INFO}/RECORD": None}, "damaged: a-1.0.dist-info/RECORD is missing"),
        ({f"{INFO}/METADATA": None}, "damaged: a-1.0.dist-info/METADATA is missing"),
        ({f"{INFO}/WHEEL": None}, "damaged: a-1.0.dist-info/WHEEL is missing"),
        ({f"{INFO}/{n}": None for n in ("RECORD", "METADATA", "WHEEL")}, "no .dist-info folder of a in it, but none"),
        ({f"{INFO}/RECORD": "a/__init__.py,sha256=x,7\n"}, "a/__init__.py is not what its RECORD says"),
        ({f"{INFO}/RECORD": "a/gone.py,sha256=x,7\n"}, "a/gone.py is in its RECORD only"),
        ({"../../evil.py": "x"}, r"../../evil.py leads out of the folder"),
        ({"/etc/evil": "x"}, r"/etc/evil leads out of the folder"),
        ({f"{INFO}/METADATA": "Name: torch\nVersion: 1.0\n", f"{INFO}/RECORD": ""}, "torch 1.0 is in it"),
        ({f"{INFO}/METADATA": "Name: a\nVersion: 2\n", f"{INFO}/RECORD": ""}, "a 2 is in it"),
        ({f"{INFO}/METADATA": "", f"{INFO}/RECORD": ""}, "nameless without version is in it"),
    ],
)
def test_a_wheel_that_contradicts_itself(tmp_path: Path, change: dict[str, str | None], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)) as caught:
        read_wheel(edit(make_wheel(tmp_path, "a"), change))
    assert "a-1.0-py3-none-any.whl" in caught.value.message and caught.value.hint


def test_a_wheel_under_anothers_name(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a")
    with pytest.raises(UsageError, match=r"no .dist-info folder of b in it, but a-1\.0\.dist-info"):
        read_wheel(path.rename(tmp_path / "b-1.0-py3-none-any.whl"))


def test_ignore_files_have_no_say_over_wheels(tmp_path: Path) -> None:
    make_wheel(tmp_path / "home", "a", "1.0")
    (tmp_path / "home/.fleetignore").write_text("*\n")
    assert [e[0] for e in scan(tmp_path / "home").entries] == []
    assert [e[0] for e in scan(tmp_path / "home", whole=True).entries] == [".fleetignore", "a-1.0-py3-none-any.whl"]


def test_a_wheel_that_a_link_leads_to_is_one(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    path = make_wheel(tmp_path / "elsewhere", "a", "1.0")
    (tmp_path / "here" / path.name).symlink_to(path)
    (wheel,) = read_folder(tmp_path / "here")
    assert wheel.sha256 == read_wheel(path).sha256


def test_a_wheel_that_takes_anothers_place_and_time_is_read_again(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", "1.0", files={"a.py": "x = 1\n"})
    before, info = read_wheel(path), path.stat()
    make_wheel(tmp_path, "a", "1.0", files={"a.py": "x = 2\n"})
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert read_wheel(path).sha256 != before.sha256


def test_cleaning_the_cache_loses_nothing(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", "1.0")
    before = read_wheel(path)
    shutil.rmtree(tmp_path / "cache")
    assert read_wheel(path) == before


def bomb(folder: Path, name: str, line: str, times: int) -> Path:
    """A wheel of which one file holds the same line again and again."""
    path = make_wheel(folder)
    with zipfile.ZipFile(path) as archive:
        files = {item: archive.read(item) for item in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for item, data in files.items():
            with archive.open(item, "w") as f:
                f.write(data)
                for _ in range(times // 10_000 if item.endswith(name) else 0):
                    f.write(line.encode() * 10_000)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line", "times", "says"),
    [
        ("RECORD", "x,,\n", 20_000_000, "RECORD is .* bytes long"),
        ("RECORD", ",,\n", 2_000_000, "names more files"),
        ("METADATA", "Requires-Dist: x\n", 4_000_000, "METADATA is .* bytes long"),
        ("__init__.py", "#" * 99 + "\n", 3_000_000, "unpack to"),
    ],
)
def test_a_wheel_that_unpacks_to_more_than_this_machine_holds(
    tmp_path: Path, name: str, line: str, times: int, says: str
) -> None:
    path = bomb(tmp_path, name, line, times)
    assert path.stat().st_size < 2 << 20
    with pytest.raises(UsageError, match=f"damaged: .*{says}"):
        read_wheel(path)
    code = (
        "import sys, contextlib, pathlib\nfrom fleet.errors import Interrupted, UsageError\n"
        "from fleet.ops.wheels.wheel import read_wheel\n"
        "with contextlib.suppress(UsageError):\n    read_wheel(pathlib.Path(sys.argv[1]))"
    )
    assert peak_of(sys.executable, "-c", code, str(path)) < LIMIT_MIB
