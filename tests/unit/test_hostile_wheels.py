"""Nodes that lie about their Python, their wheels and their compilers: that host's error, and nobody else's."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import FleetError, HostFailed, ProtocolError, UsageError
from fleet.model import Host, Inventory, Report
from fleet.ops import build, wheels
from fleet.ops.build.node import build_there
from fleet.ops.wheels import node
from fleet.ops.wheels.wheel import read_wheel
from fleet.protocol.frames import PREAMBLE
from fleet.requests.sync import SyncWheels
from fleet.runtime import Runtime
from fleet.transport.base import Cancel
from tests.peak import LIMIT_MIB, peak_of
from tests.unit.test_hostile_node import Node, frame, said
from tests.wheelmaker import make_wheel

pytestmark = pytest.mark.slow
EVIL, GOOD = Host("evil", "evil"), Host("good", "good")
BOTH = Inventory((EVIL, GOOD))
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
    "unmet": [],
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Fleet:
    """A transport: to each host, the node that stands for it."""

    name = "fleet"

    def __init__(self, **nodes: Node) -> None:
        self.nodes = nodes

    def connect(self, host: Host, cancel: Cancel) -> Any:
        self.nodes[host.name].host = host
        return self.nodes[host.name]

    def close(self) -> None: ...


def errors(report: Report) -> list[str]:
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
        {"unmet": [["a", "b", None]]},
        {"unmet": [{"wheel": 1, "needs": "b", "has": None}]},
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
    transport = Fleet(evil=said({**there, **change}), good=said(there))
    plan = wheels.plan(BOTH, SyncWheels(tmp_path / "w"))
    report = wheels.run(plan, Runtime(transport))
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
def test_refusals_are_read_with_care(answer: dict[str, Any], kind: str) -> None:
    (result,) = node.ask(Inventory((EVIL,)), (), Runtime(Fleet(evil=said(answer))))
    assert result.error and result.error.kind == kind


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
    wheel = read_wheel(make_wheel(tmp_path))
    transport = Fleet(
        evil=said(answer), good=said({"event": "done", "executable": "/p", "wheels": {"tinypkg": "installed"}})
    )
    evil, good = node.install(BOTH, (wheel,), {"evil": FACTS, "good": FACTS}, "~/w", Runtime(transport), 1.0)
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
    (tmp_path / "setup.py").write_text("")
    options = build.Build(str(tmp_path))
    transport = Fleet(evil=said({"facts": {**TOOLCHAIN, **change}}), good=said({"facts": TOOLCHAIN}))
    report = build.run(build.plan(BOTH, options), Runtime(transport))
    assert errors(report) == ["protocol", ""] and report.exit_code == 122


@pytest.mark.parametrize("answer", [{}, {"facts": None}, {"facts": []}])
def test_no_toolchain_at_all(answer: dict[str, Any]) -> None:
    (result,) = build.look(Inventory((EVIL,)), Runtime(Fleet(evil=said(answer))))
    assert isinstance(result.error, ProtocolError)


def test_facts_whose_step_failed_are_missing_and_no_lie() -> None:
    (result,) = build.look(Inventory((EVIL,)), Runtime(Fleet(evil=said({"facts": {"timed_out": ["gpus"]}}))))
    assert result.ok


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
        [{**WHEEL, "file": "/etc/passwd"}],
    ],
)
def test_a_build_that_ends_in_other_words(tmp_path: Path, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(FleetError) as caught:
        build_there(Inventory((EVIL,)), "~/s", {}, tmp_path, "b", Runtime(Fleet(evil=said(*messages))))
    assert caught.value.kind == "protocol" and caught.value.host == "evil"
    assert [p.name for p in tmp_path.iterdir()] == ["build.log"]


def test_a_wheel_that_is_not_announced(tmp_path: Path) -> None:
    talker = Node(PREAMBLE, frame(b"O", b"w", 1), frame(b"X", b'{"exit_status": 0}'))
    with pytest.raises(FleetError, match="did not come back whole"):
        build_there(Inventory((EVIL,)), "~/s", {}, tmp_path, "b", Runtime(Fleet(evil=talker)))
    assert [p.name for p in tmp_path.iterdir()] == ["build.log"]


def test_a_log_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.ops.build.node.MAX_LOG_BYTES", 1000)
    talker = Node(PREAMBLE, *[frame(b"O", b"y" * 600)] * 5)
    with pytest.raises(ProtocolError, match="no end"):
        build_there(Inventory((EVIL,)), "~/s", {}, tmp_path, "b", Runtime(Fleet(evil=talker)))


@pytest.mark.parametrize("content", [b"no zip", b""])
def test_a_built_wheel_that_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        archive.writestr("x.py", "")
    path.write_bytes(content or buffer.getvalue())
    with pytest.raises(HostFailed, match="no wheel of deepspeed"):
        build.check_ops(path, ("cpu_adam",), "evil")


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
        "import sys, contextlib, pathlib\nfrom fleet.errors import UsageError\n"
        "from fleet.ops.wheels.wheel import read_wheel\n"
        "with contextlib.suppress(UsageError):\n    read_wheel(pathlib.Path(sys.argv[1]))"
    )
    assert peak_of(sys.executable, "-c", code, str(path)) < LIMIT_MIB
