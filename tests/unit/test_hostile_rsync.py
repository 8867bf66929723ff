"""rsync is led by what a node says of its folders, and by what is around: neither turns it into more."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fleet.delivery.mirror import SMALL_BYTES
from fleet.errors import HostFailed, ProtocolError
from fleet.model import Inventory
from fleet.ops import broadcast, sync
from fleet.requests.sync import Sync, SyncData
from fleet.runtime import Runtime
from fleet.transport.base import Cancel
from fleet.transport.local import LocalTransport
from fleet.transport.rsh import stage
from tests.unit.test_hostile_node import HOST, NEED, Node, said


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an rsync that stands first on PATH notes its argv, its environment and what lies in TMPDIR."""
    note, tmp, bin_ = tmp_path / "seen", tmp_path / "tmp", tmp_path / "bin"
    for folder in (tmp, bin_):
        folder.mkdir()
    (bin_ / "rsync").write_text(
        f"#!{sys.executable} -IS\nimport json, os, sys\n"
        f"json.dump([sys.argv, dict(os.environ), os.listdir({str(tmp)!r})], open({str(note)!r}, 'w'))\n"
    )
    (bin_ / "rsync").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("RSYNC_PASSWORD", "RSYNC_RSH", "RSYNC_PROXY", "RSYNC_CONNECT_PROG"):
        monkeypatch.setenv(name, "hunter2")
    return note


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "large").write_bytes(b"x" * (SMALL_BYTES + 1))
    return folder


@pytest.mark.parametrize(
    "change",
    [
        {"stage": ":mod"},
        {"stage": "stage"},
        {"stage": ""},
        {"basis": ":mod"},
        {"basis": "../x"},
        {"basis": "/x\0y"},
    ],
)
def test_a_folder_of_the_node_that_is_no_absolute_path(source: Path, seen: Path, change: dict[str, Any]) -> None:
    hello = {"event": "hello", "dest": "/d", "known": None, "rsync": "/usr/bin/rsync"}
    need = {"event": "need", "files": [["large", 1]], "stage": "/d/s", "basis": "/d", **change}
    inventory = Inventory((HOST,))
    report = sync.run(sync.plan(inventory, Sync(source, "/d")), Runtime(said(hello, need)))
    assert isinstance(report.results[0].error, ProtocolError) and not seen.exists()


@pytest.mark.parametrize("stage", [":mod", "stage", "", "/x\0y"])
def test_a_stage_of_a_broadcast_that_is_no_absolute_path(source: Path, seen: Path, stage: str) -> None:
    inventory = Inventory((HOST,))
    plan = broadcast.plan(inventory, SyncData(data=[f"{source}/large:/d/large"], via="rsync"))
    size = SMALL_BYTES + 1
    need = {**NEED, "wants": [[0, size]], "bytes": size, "stages": [stage]}
    report = broadcast.run(plan, Runtime(said({"event": "hello"}, need)))
    assert isinstance(report.results[0].error, ProtocolError) and not seen.exists()


def test_rsync_is_alone_with_what_it_is_told(source: Path, seen: Path) -> None:
    stage(Node(), [], source, "/d", ["large"], cancel=Cancel(), moved=lambda count: None)
    argv, env, left = json.loads(seen.read_text())
    assert argv[-1] == "node:/d/" and left == []
    assert not [name for name in env if name.startswith("RSYNC_")] and env["PATH"] == os.environ["PATH"]
    with pytest.raises(ProtocolError, match="absolute"):
        stage(Node(), [], source, ":mod", ["large"], cancel=Cancel(), moved=lambda count: None)


@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")
def test_the_nodes_rsync_is_killed(source: Path) -> None:
    node = LocalTransport().connect(HOST, Cancel())

    class Killed(Node):
        def start(self, command: str) -> Any:
            return node.start("printf '\\000FLEET1\\n'; kill -9 $$")

    with pytest.raises(HostFailed, match="exit status 137"):  # not what becomes of rsync here, "Broken pipe"
        stage(Killed(), [], source, "/d", ["large"], cancel=Cancel(), moved=lambda count: None)
