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

from fleet.errors import HostFailed, ProtocolError
from fleet.transport.base import Cancel
from fleet.transport.rsh import stage
from tests.hostile import NEED, Node, error_of, hostile
from tests.in_process import session_here

SMALL_BYTES = 1 << 20  # what is larger goes by rsync


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
    assert error_of(hostile(hello, need).sync(source, "/d")).kind == "protocol" and not seen.exists()


@pytest.mark.parametrize("stage", [":mod", "stage", "", "/x\0y"])
def test_a_stage_of_a_broadcast_that_is_no_absolute_path(source: Path, seen: Path, stage: str) -> None:
    size = SMALL_BYTES + 1
    need = {**NEED, "wants": [[0, size]], "bytes": size, "stages": [stage]}
    report = hostile({"event": "hello"}, need).sync_data(f"{source}/large:/d/large", via="rsync")
    assert error_of(report).kind == "protocol" and not seen.exists()


def test_rsync_is_alone_with_what_it_is_told(source: Path, seen: Path) -> None:
    stage(Node(), [], source, "/d", ["large"], cancel=Cancel(), moved=lambda count: None)
    argv, env, left = json.loads(seen.read_text())
    assert argv[-1] == "node:/d/" and left == []
    assert not [name for name in env if name.startswith("RSYNC_")] and env["PATH"] == os.environ["PATH"]
    with pytest.raises(ProtocolError, match="absolute"):
        stage(Node(), [], source, ":mod", ["large"], cancel=Cancel(), moved=lambda count: None)


@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")
def test_the_nodes_rsync_is_killed(source: Path) -> None:
    node = session_here()

    class Killed(Node):
        def start(self, command: str) -> Any:
            return node.start("printf '\\000FLEET1\\n'; kill -9 $$")

    with pytest.raises(HostFailed, match="exit status 137"):  # not what becomes of rsync here, "Broken pipe"
        stage(Killed(), [], source, "/d", ["large"], cancel=Cancel(), moved=lambda count: None)
