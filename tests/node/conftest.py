"""What the tests of shipped programs share."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.installs import folder as folder
from tests.node.installs import python as python
from tests.node.nodes import marked


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A node's home folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What is synced: an empty folder."""
    folder = tmp_path / "src"
    folder.mkdir()
    return folder


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    """Where it goes on a node; not there yet."""
    return tmp_path / "node" / "work"


@pytest.fixture
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What programs note in the home folder of the node, here this machine, is none of its user's."""
    folder = tmp_path_factory.getbasetemp() / "own-home"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(folder))


@pytest.fixture
def run() -> Iterator[str]:
    """A run id of this test's own; whatever still carries it afterwards is killed."""
    name = f"test-{uuid.uuid4().hex[:12]}-20260101-000000-0000"
    yield name
    for pid in marked(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
