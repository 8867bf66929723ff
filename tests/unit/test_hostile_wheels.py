"""Nodes that lie about their Python, their wheels and their compilers: that host's error, and nobody else's."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import UsageError
from tests.hostile import MIRRORED, PREAMBLE, Node, error_of, frame, sending, taking_turns
from tests.wheelmaker import make_wheel, python_facts

DIST: dict[str, Any] = {"name": "six", "version": "1.0", "requires": [], "extras": []}
FACTS: dict[str, Any] = {
    "event": "facts",
    "executable": "/p",
    "version": "3.11.7",
    "implementation": "cpython",
    "platform": "linux-x86_64",
    "soabi": None,
    "prefix": "/",
    "target": "/site",
    "pip": "23.2",
    "managed": False,
    "free": 1 << 40,
    "tags": ["cp311-cp311-linux_x86_64", "py3-none-any"],
    "states": [{"state": "absent", "verified": False}],
    "dists": [],
    "markers": python_facts()["markers"],
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def errors(report: Any) -> list[str]:
    """Every host's kind of error, once all of it can be written as JSON."""
    assert report.as_json()
    return [r.error.kind if r.error else "" for r in report.results]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"states": []},
        {"states": [{"state": "there"}]},
        {"states": [{"state": "\x1b[2J", "verified": True}]},
        {"states": 3},
        {"states": [None]},
        {"states": [{"state": "there", "verified": True}] * 2},
        {"target": None},
        {"target": "x" * 10_000},
        {"free": "1"},
        {"free": None},
        {"free": True},
        {"tags": None},
        {"tags": [["cp311", "cp311", "any"]]},
        {"tags": ["cp311"]},
        {"tags": ["--index-url=x-y-z"]},
        {"managed": "no"},
        {"markers": {}},
        {"markers": {**python_facts()["markers"], "os_name": "a\nb"}},
        {"dists": ["a"]},
        {"dists": [{**DIST, "name": "../../evil"}]},
        {"dists": [{**DIST, "name": "-r"}]},
        {"dists": [{**DIST, "version": "1\nRequires-Dist: evil @ file:///evil"}]},
        {"dists": [{**DIST, "requires": ["six\n./evil"]}]},
        {"dists": [{**DIST, "requires": ["x" * 2000]}]},
        {"dists": [{**DIST, "extras": ["a\nb"]}]},
        {"dists": [DIST] * 5001},
        {"version": "3"},
        {"version": 3.11},
        {"version": "3.11.7; x"},
        {"soabi": 1},
        {"pip": 23},
        {"executable": ["/p"]},
        {"event": []},
    ],
)
def test_a_python_that_cannot_be(tmp_path: Path, change: dict[str, Any]) -> None:
    make_wheel(tmp_path / "w")
    there = {**FACTS, "states": [{"state": "there", "verified": True}]}
    report = taking_turns(evil=sending({**there, **change}), good=sending(there)).sync_wheels(tmp_path / "w")
    wrong = bool(change)
    assert errors(report) == (["protocol", "held"] if wrong else ["", ""])
    assert report.results[1].data["wheels"] == {"tinypkg": "there"}
    assert not wrong or report.exit_code == 122


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"event": "failed", "message": "no", "hint": None}, "wheels"),
        ({"event": "failed"}, "protocol"),
        ({"event": "failed", "message": 1, "hint": None}, "protocol"),
        ({"x": 1}, "protocol"),
    ],
)
def test_refusals_are_read_with_care(tmp_path: Path, answer: dict[str, Any], kind: str) -> None:
    assert error_of(taking_turns(evil=sending(answer)).sync_wheels(make_wheel(tmp_path))).kind == kind


@pytest.mark.parametrize(
    ("answer", "kind", "state"),
    [
        (
            {"event": "done", "executable": "/p", "wheels": {"tinypkg": "installed", "\x1b[2J": "installed"}},
            "",
            "installed",
        ),
        ({"event": "done", "executable": "/p", "wheels": {}}, "protocol", "unknown"),
        ({"event": "done", "executable": "/p", "wheels": {"tinypkg": "rm -rf"}}, "protocol", "unknown"),
        ({"event": "done", "executable": None, "wheels": {"tinypkg": "there"}}, "protocol", "unknown"),
        ({"event": "done", "executable": "/p", "wheels": [["tinypkg", "there"]]}, "protocol", "unknown"),
        ({"event": "failed", "message": "pip: no", "hint": None, "wheels": {"tinypkg": "broken"}}, "wheels", "broken"),
        ({"event": "failed", "message": "pip: no", "hint": None, "wheels": {"other": "there"}}, "wheels", "unknown"),
        ({"event": "failed", "message": "pip: no", "hint": None, "wheels": 7}, "protocol", "unknown"),
        ({}, "protocol", "unknown"),
    ],
)
def test_an_install_that_ends_in_other_words(tmp_path: Path, answer: dict[str, Any], kind: str, state: str) -> None:
    installed = {"event": "done", "executable": "/p", "wheels": {"tinypkg": "installed"}}

    def turns(last: dict[str, Any]) -> list[Node]:
        return [sending(FACTS), sending(FACTS), sending(*MIRRORED), sending(last)]

    report = taking_turns(evil=turns(answer), good=turns(installed)).sync_wheels(make_wheel(tmp_path))
    evil, good = report.results
    assert (evil.error.kind if evil.error else "") == kind and evil.data["wheels"] == {"tinypkg": state}
    assert good.ok and good.data["wheels"] == {"tinypkg": "installed"}


TOOLCHAIN: dict[str, Any] = {
    "activate": None,
    "python": {"executable": "/p", "version": "3.11.7", "error": None},
    "torch": None,
    "glibc": "2.36",
    "gpus": [],
    "gpu_error": None,
    "cc": {"path": "/cc", "version": "12.2.0"},
    "cxx": {"path": "/cxx", "version": None},
    "nvcc": None,
    "ninja": None,
    "headers": "/Python.h",
    "backends": {"pip": True, "setuptools": True, "wheel": False},
    "timed_out": [],
    "failed": {},
}


def tree(folder: Path) -> Path:
    (folder / "tree").mkdir(exist_ok=True)
    (folder / "tree/setup.py").write_text("")
    return folder / "tree"


@pytest.mark.parametrize(
    "change",
    [
        {"activate": ["x"]},
        {"python": "3"},
        {"python": {"error": None}},
        {"torch": {"version": 2}},
        {"glibc": 2.36},
        {"gpus": 7},
        {"gpus": [{"name": "A100"}]},
        {"gpus": [{"name": None, "capability": None}]},
        {"gpus": [{"name": "A100", "capability": "8.0;$(id)\x1b[2J"}]},
        {"gpu_error": {}},
        {"cc": "gcc"},
        {"cc": {"path": "/cc", "version": "\x1b[31m12"}},
        {"nvcc": {"version": "12"}},
        {"headers": 1},
        {"backends": []},
        {"backends": {"pip": "yes", "setuptools": True, "wheel": True}},
    ],
)
def test_a_toolchain_that_cannot_be(tmp_path: Path, change: dict[str, Any]) -> None:
    hosts = taking_turns(evil=sending({"facts": {**TOOLCHAIN, **change}}), good=sending({"facts": TOOLCHAIN}))
    report = hosts.build(str(tree(tmp_path)))
    assert errors(report) == ["protocol", ""] and report.exit_code == 122


@pytest.mark.parametrize("answer", [{}, {"facts": None}, {"facts": []}])
def test_no_toolchain_at_all(tmp_path: Path, answer: dict[str, Any]) -> None:
    assert error_of(taking_turns(evil=sending(answer)).build(str(tree(tmp_path)))).kind == "protocol"


def test_facts_whose_step_failed_are_missing_and_no_lie(tmp_path: Path) -> None:
    hosts = taking_turns(evil=sending({"facts": {"timed_out": ["gpus"]}}))
    assert error_of(hosts.build(str(tree(tmp_path)), cpu=True)).kind == "toolchain"


def build(tmp_path: Path, last: Node, **options: Any) -> Any:
    """Its error, where all goes well until the build itself; its log is all that is left of it."""
    facts = {**TOOLCHAIN, "backends": {"pip": True, "setuptools": True, "wheel": True}}
    facts["cxx"] = facts["cc"]
    hosts = taking_turns(evil=[sending({"facts": facts}), sending(*MIRRORED), last])
    report = hosts.build(str(tree(tmp_path)), cpu=True, builds_dir=tmp_path / "builds", **options)
    assert stat.S_IMODE((tmp_path / "builds").stat().st_mode) == 0o700, "builds/ is the user's alone"
    (folder,) = (path for path in (tmp_path / "builds").iterdir() if path.is_dir())
    assert [path.name for path in folder.iterdir()] == ["build.log"]
    return error_of(report)


WHEEL = {"event": "built", "file": "x-1-py3-none-any.whl", "size": 1, "sha256": hashlib.sha256(b"w").hexdigest()}


@pytest.mark.parametrize(
    "messages",
    [
        [{"x": 1}],
        [{"event": "built"}],
        [{**WHEEL, "sha256": 7}],
        [WHEEL, WHEEL],
        [WHEEL],
        [{"event": "started"}],
        [{"event": "failed", "message": {}, "hint": None}],
        *([{**WHEEL, "file": name}] for name in ("/etc/passwd", "..", "../x-1-py3-none-any.whl", "build.log", 7, None)),
        [{**WHEEL, "file": "a\nb-1-py3-none-any.whl"}],
    ],
)
def test_a_build_that_ends_in_other_words(tmp_path: Path, messages: list[dict[str, Any]]) -> None:
    error = build(tmp_path, sending(*messages))
    assert error.kind == "protocol" and error.host == "evil"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_builds_folder_that_another_user_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "builds").mkdir()
    os.chown(tmp_path / "builds", 12345, 12345)
    with pytest.raises(UsageError, match="belongs to user id 12345") as refused:
        build(tmp_path, sending())
    assert "--builds-dir" in (refused.value.hint or "")


def test_a_wheel_that_is_not_announced(tmp_path: Path) -> None:
    talker = Node(PREAMBLE, frame(b"O", b"w", 1), frame(b"X", b'{"exit_status": 0}'))
    assert "did not come back whole" in build(tmp_path, talker).message


def test_a_log_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.ops.build.node.MAX_LOG_BYTES", 1000)
    assert "no end" in build(tmp_path, Node(PREAMBLE, *[frame(b"O", b"y" * 600)] * 5)).message


def test_the_log_names_what_the_user_set_and_keeps_its_value(tmp_path: Path) -> None:
    build(tmp_path, sending(), env={"DS_BUILD_OPS": "0", "HF_TOKEN": "secret"})
    (log,) = (tmp_path / "builds").glob("*/build.log")
    assert log.read_text() == "DS_BUILD_OPS=0 HF_TOKEN\n"
