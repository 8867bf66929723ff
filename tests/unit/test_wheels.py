"""Wheels: read, chosen and refused on the head, before any node is sent anything."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.delivery.tree import scan
from fleet.errors import PreflightError, UsageError
from fleet.model import Host, Inventory
from fleet.ops.wheels import plan
from fleet.ops.wheels.download import collect, target_options
from fleet.ops.wheels.node import refusal
from fleet.ops.wheels.tags import agree, choose, common_tags
from fleet.ops.wheels.wheel import read_folder, read_wheel
from fleet.requests.sync import SyncWheels
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.wheelmaker import make_wheel


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def facts(version: str = "3.11.7", glibc: int = 36, **changes: Any) -> dict[str, Any]:
    """An interpreter as node/python/interpreter.py describes it, CPython on x86_64."""
    cp = "cp" + "".join(version.split(".")[:2])
    platforms = [f"manylinux_2_{n}_x86_64" for n in range(glibc, 16, -1)] + ["linux_x86_64"]
    tags = [f"{cp}-{cp}-{p}" for p in platforms] + [f"{cp}-abi3-{p}" for p in platforms] + ["py3-none-any"]
    return {
        "version": version,
        "implementation": "cpython",
        "soabi": f"{cp}-x86_64",
        "platform": "linux-x86_64",
        "executable": "/opt/python",
        "pip": "23.2",
        "tags": tags,
        "managed": False,
        "unmet": [],
        "free": 1 << 40,
        "target": "/opt/site-packages",
        "states": [],
        **changes,
    }


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
    inventory = Inventory((Host("a", "a"),))
    with pytest.raises(UsageError, match="source distribution"):
        plan(inventory, SyncWheels(tmp_path / "pkg-1.0.tar.gz"))
    with pytest.raises(UsageError, match="does not exist"):
        plan(inventory, SyncWheels(tmp_path / "nowhere"))


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


@pytest.mark.parametrize(
    ("text", "says", "where"),
    [
        (b"\xff\x00", "not UTF-8 text", None),
        (b"numpy\n-r nowhere.txt\n", "nowhere.txt: No such file", ":2"),
        (b"# nothing\n", "asks for nothing", None),
        (b"this is == no requirement\n", "is an invalid requirement", ":1"),
        (b"--frobnicate\n", "'--frobnicate' is no option that fleet hands to pip", ":1"),
    ],
)
def test_requirements_that_are_none(tmp_path: Path, text: bytes, says: str, where: str | None) -> None:
    path = tmp_path / "r.txt"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=says) as caught:
        collect(path, {"h": facts()}, Runtime(LocalTransport()))
    assert caught.value.hint and (caught.value.where or "").endswith(where or "")
    assert not list(tmp_path.glob("cache/fleet/wheels/*"))


RUNS = "run its code on this machine|run a package's code on this machine|does not hand to pip"


@pytest.mark.parametrize(
    "line",
    [
        "-e .",
        "-e.",
        "--editable .",
        "--edit=.",
        ".",
        "./pkg",
        "pkg/",
        "/srv/pkg",
        "pkg.tar.gz",
        "pkg-1.0.zip[extra]",
        "../pkg",
        "./pkg ; python_version > '3'",
        "git+https://example.org/pkg",
        "pkg @ git+ssh://example.org/pkg",
        "pkg @ https://example.org/pkg.tar.gz",
        "https://example.org/pkg.zip#egg=pkg",
        "file:///srv/pkg",
        "pkg @ file:///srv/pkg",
        "--no-binary :all:",
        "--no-binary=pkg",
        "--no-bin :all:",
        "--pre --no-binary :all:",
        "pkg --config-settings=a=b",
        "pkg==1.0 --global-option=--evil",
        "-i https://example.org -e .",
        "pk\\\ng @ git+https://example.org/pkg",
    ],
)
def test_requirements_that_would_run_code_here_are_refused_by_their_line(tmp_path: Path, line: str) -> None:
    inner, outer = tmp_path / "inner.txt", tmp_path / "r.txt"
    inner.write_text(f"numpy\n# a remark\n{line}\n")
    outer.write_text("-r inner.txt\n")
    with pytest.raises(UsageError, match=RUNS) as caught:
        plan(Inventory((Host("h", "h"),)), SyncWheels(outer))
    assert caught.value.where == f"{inner}:3" and caught.value.hint


def test_requirements_that_are_names_or_wheels_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    (tmp_path / "more.txt").write_text("six\n")
    (tmp_path / "w").mkdir()
    make_wheel(tmp_path, "a")
    path.write_text(
        "numpy>=1 ; python_version > '3.8'  # fast\n"
        "torch[extra]==2.0 \\\n  --hash=sha256:aa --hash=sha256:bb\n"
        "-i https://example.org/simple\n--extra-index-url=https://example.org/x\n--pre\n-rmore.txt\n"
        "./a-1.0-py3-none-any.whl\nb @ https://example.org/b-1.0-py3-none-any.whl#sha256=00\n"
        "--find-links ./w\n"
    )
    assert plan(Inventory((Host("h", "h"),)), SyncWheels(path)).kind == "requirements"


def test_uneven_pythons_are_named() -> None:
    agree({"gpu01": facts(), "gpu02": facts("3.11.2")})
    with pytest.raises(PreflightError) as caught:
        agree({"gpu01": facts(), "gpu02": facts(), "gpu03": facts("3.10.1")})
    assert "cpython 3.11 (cp311-x86_64) on gpu[01-02]; cpython 3.10 (cp310-x86_64) on gpu03" in caught.value.message
    assert caught.value.exit_code == 123


def test_the_oldest_glibc_counts() -> None:
    hosts = {"new": facts(glibc=36), "old": facts(glibc=17)}
    tags = common_tags(hosts)
    assert "cp311-cp311-manylinux_2_17_x86_64" in tags and "cp311-cp311-manylinux_2_28_x86_64" not in tags
    words = target_options(hosts)
    assert words[:4] == ["--platform", "manylinux_2_17_x86_64", "--platform", "linux_x86_64"]
    assert words[4:] == ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]


def test_a_wheel_that_one_host_refuses_is_named_with_what_that_host_takes(tmp_path: Path) -> None:
    wheel = read_wheel(make_wheel(tmp_path, "a", "1.0", tag="cp311-cp311-manylinux_2_28_x86_64"))
    with pytest.raises(PreflightError) as caught:
        choose([wheel], {"new": facts(glibc=36), "old": facts(glibc=17)})
    assert "a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl does not fit old: Python 3.11.7 there" in caught.value.message
    assert "cp311-cp311-manylinux_2_17_x86_64" in caught.value.message


def test_of_several_builds_the_best_fitting_is_taken(tmp_path: Path) -> None:
    for tag in ("cp310-cp310-linux_x86_64", "cp311-cp311-linux_x86_64", "py3-none-any"):
        make_wheel(tmp_path, "a", "1.0", tag=tag)
    chosen = choose(read_folder(tmp_path), {"h": facts()})
    assert [w.path.name for w in chosen] == ["a-1.0-cp311-cp311-linux_x86_64.whl"]
    make_wheel(tmp_path, "a", "1.1")
    with pytest.raises(UsageError, match=r"several versions of a: 1\.0, 1\.1"):
        choose(read_folder(tmp_path), {"h": facts()})


def test_requires_python(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", "1.0", headers=["Requires-Python: >=3.12"])
    with pytest.raises(PreflightError, match=r"a-1\.0-py3-none-any\.whl wants Python >=3\.12, h has 3\.11\.7"):
        choose([read_wheel(path)], {"h": facts()})


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"pip": None}, "no-pip"),
        ({"managed": True}, "managed"),
        ({"unmet": [{"wheel": "a", "needs": "numpy>=2", "has": "1.26"}]}, "unmet"),
        ({"free": 10}, "room"),
    ],
)
def test_what_is_refused_before_anything_is_sent(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    wheel = read_wheel(make_wheel(tmp_path, "a", "1.0"))
    absent = [{"state": "absent", "verified": False}]
    assert refusal(facts(states=absent), [wheel]) is None
    error = refusal(facts(states=absent, **changes), [wheel])
    assert error is not None and error.kind == kind and error.hint and error.exit_code == 123


def test_ignore_files_have_no_say_over_wheels(tmp_path: Path) -> None:
    make_wheel(tmp_path / "home", "a", "1.0")
    (tmp_path / "home/.fleetignore").write_text("*\n")
    assert [e[0] for e in scan(tmp_path / "home").entries] == []
    assert [e[0] for e in scan(tmp_path / "home", whole=True).entries] == [".fleetignore", "a-1.0-py3-none-any.whl"]


def test_cleaning_the_cache_loses_nothing(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", "1.0")
    before = read_wheel(path)
    shutil.rmtree(tmp_path / "cache")
    assert read_wheel(path) == before
