"""Wheels and requirements: chosen and refused on the head, before any node is sent anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.errors import PreflightError, UsageError
from tests.hostile import error_of, sending, taking_turns
from tests.in_process import fleet_here
from tests.wheelmaker import make_wheel
from tests.wheelmaker import python_facts as facts

THERE, ABSENT = ({"state": state, "verified": state == "there"} for state in ("there", "absent"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def sync(wheels: Path, *states: dict[str, Any], **hosts: dict[str, Any]) -> Any:
    """What comes of these wheels on hosts with Pythons of these facts."""
    nodes = {name: sending({"event": "facts", **found, "states": [*states]}) for name, found in hosts.items()}
    return taking_turns(**nodes).sync_wheels(wheels)


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
        sync(path, h=facts())
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
        fleet_here("h").plan.sync_wheels(outer)
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
    assert fleet_here("h").plan.sync_wheels(path).describe()["kind"] == "requirements"


def test_uneven_pythons_are_named(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a")
    assert sync(path, THERE, gpu01=facts(), gpu02=facts("3.11.2")).exit_code == 0
    with pytest.raises(PreflightError) as caught:
        sync(path, THERE, gpu01=facts(), gpu02=facts(), gpu03=facts("3.10.1"))
    assert "cpython 3.11 (cp311-x86_64) on gpu[01-02]; cpython 3.10 (cp310-x86_64) on gpu03" in caught.value.message
    assert caught.value.exit_code == 123


def test_a_wheel_that_one_host_refuses_is_named_with_what_that_host_takes(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", "1.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    with pytest.raises(PreflightError) as caught:
        sync(path, ABSENT, new=facts(glibc=36), old=facts(glibc=17))
    assert "a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl does not fit old: Python 3.11.7 there" in caught.value.message
    assert "cp311-cp311-manylinux_2_17_x86_64" in caught.value.message


def test_of_several_builds_the_best_fitting_is_taken(tmp_path: Path) -> None:
    for tag in ("cp310-cp310-linux_x86_64", "cp311-cp311-linux_x86_64", "py3-none-any"):
        make_wheel(tmp_path, "a", "1.0", tag=tag)
    first, then = (sending({"event": "facts", **facts(), "states": states}) for states in ([ABSENT] * 3, [THERE]))
    report = taking_turns(h=[first, then]).sync_wheels(tmp_path)
    assert [wheel["file"] for wheel in report.data["wheels"]] == ["a-1.0-cp311-cp311-linux_x86_64.whl"]
    make_wheel(tmp_path, "a", "1.1")
    with pytest.raises(UsageError, match=r"several versions of a: 1\.0, 1\.1"):
        sync(tmp_path, *[ABSENT] * 4, h=facts())


def test_requires_python(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, "a", "1.0", headers=["Requires-Python: >=3.12"])
    with pytest.raises(PreflightError, match=r"a-1\.0-py3-none-any\.whl wants Python >=3\.12, h has 3\.11\.7"):
        sync(path, ABSENT, h=facts())


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"pip": None}, "no-pip"),
        ({"managed": True}, "managed"),
        ({"free": 10}, "room"),
    ],
)
def test_what_is_refused_before_anything_is_sent(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    error = error_of(sync(make_wheel(tmp_path, "a", "1.0"), ABSENT, h=facts(**changes)))
    assert error.kind == kind and error.hint and error.exit_code == 123
