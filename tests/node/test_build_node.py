"""The program that builds, as a subprocess: its source is locked while it is copied."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from fleet.codec import decode
from fleet.node.base import child_processes
from fleet.protocol.messages.build import Tool
from tests.node.nodes import Running, answer, until

SETUP = "from setuptools import setup\nsetup(name='tinyext', version='0.1', py_modules=['tinyext'])\n"


@pytest.fixture
def spec(tmp_path: Path) -> dict[str, Any]:
    """A tree that a sync has delivered, with the lock of it."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "setup.py").write_text(SETUP)
    (tree / "tinyext.py").write_text("")
    (tmp_path / ".tree.fleet-sync").mkdir()
    (tmp_path / ".tree.fleet-sync/lock").write_text(json.dumps({"sync": "s", "host": "n1", "head": "desk"}))
    return {
        "python": sys.executable,
        "activate": None,
        "env": {},
        "source": str(tree),
        "id": "b1",
        "mark": f"build-{uuid.uuid4().hex}",
        "grace": 0.0,
        "wait": 0.3,
    }


def test_what_makes_wheels_there(home: Path, tmp_path: Path) -> None:
    """A new environment of Python 3.10 has a setuptools that cannot do it without the wheel package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    package = next(tmp_path.glob("env/lib/python3*/site-packages")) / "setuptools"

    def backends() -> dict[str, bool]:
        spec = {"python": str(tmp_path / "env/bin/python"), "activate": None, "env": {}, "deadline": 60}
        return dict(answer("python.toolchain", spec, home)["facts"]["backends"])

    assert backends() == {"pip": False, "setuptools": False, "wheel": False}
    (package / "command").mkdir(parents=True)
    (package / "__init__.py").touch()
    assert backends() == {"pip": False, "setuptools": True, "wheel": False}
    (package / "command/bdist_wheel.py").touch()
    assert backends() == {"pip": False, "setuptools": True, "wheel": True}


@pytest.mark.parametrize("said", ["1.13.0.git.kitware.jobserver-pipe-1", "1.11.1"])
def test_the_version_of_a_tool_is_what_the_head_takes(home: Path, tmp_path: Path, said: str) -> None:
    """PyPI's ninja adds words behind a dot."""
    (tmp_path / "ninja").write_text(f"#!/bin/sh\necho {said}\n")
    (tmp_path / "ninja").chmod(0o755)
    spec = {"python": None, "activate": None, "env": {"PATH": f"{tmp_path}:/usr/bin:/bin"}, "deadline": 60}
    ninja = answer("python.toolchain", spec, home)["facts"]["ninja"]
    assert ninja == {"path": str(tmp_path / "ninja"), "version": said.partition(".git")[0]}
    assert decode(Tool | None, ninja)


# it is nobody's from its making to its lock, and a node with much to do may lie between the two
TAKEN_AWAY = """
import fcntl, os, shutil
lock, taken_away = fcntl.lockf, []
def lockf(fd, how, *more):
    lock(fd, how, *more)
    if os.path.isdir(%r) and not taken_away:
        taken_away.append(shutil.rmtree(%r))
fcntl.lockf = lockf
"""


def test_builds_do_not_wait_for_each_other_nor_keep_each_others_rooms(
    spec: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    """A room that another build takes for nobody's is made anew."""
    room = str(home / ".fleet/builds/b1")
    with (tmp_path / ".tree.fleet-sync/lock").open() as f:
        fcntl.lockf(f, fcntl.LOCK_SH)
        said = answer("python.build", spec, home, first=TAKEN_AWAY % (room, room))
    assert said["event"] == "built" and said["file"] == "tinyext-0.1-py3-none-any.whl", said
    assert not list((home / ".fleet/builds").iterdir())


@pytest.mark.parametrize(
    "line", ["echo a; sleep 0.3; echo b", "echo a; echo b; sleep 1000 &"], ids=["slow", "held open"]
)
def test_all_that_a_command_printed_is_heard_and_no_more_waited_for(line: str) -> None:
    """Whoever takes it may be slow: the head's link is."""
    said: list[bytes] = []

    def take(data: bytes) -> None:
        said.append(data)
        time.sleep(6.0 if "0.3" in line else 0.0)

    child = child_processes.started(["sh", "-c", line], dict(os.environ), "/")
    try:
        assert child_processes.read_to_end(child, take) and b"".join(said) == b"a\nb\n"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def test_a_sync_that_does_not_end_is_said(spec: dict[str, Any], home: Path, tmp_path: Path) -> None:
    with (tmp_path / ".tree.fleet-sync/lock").open("r+") as f:
        fcntl.lockf(f, fcntl.LOCK_EX)
        said = answer("python.build", spec, home)
    assert said["event"] == "failed" and f"a sync to {spec['source']} from desk is under way" in said["message"]
    assert not list((home / ".fleet/builds").iterdir())


def test_a_head_that_goes_away_ends_the_waiting(spec: dict[str, Any], home: Path, tmp_path: Path) -> None:
    spec["wait"] = 600
    with (tmp_path / ".tree.fleet-sync/lock").open("r+") as f:
        fcntl.lockf(f, fcntl.LOCK_EX)
        with Running("python.build", spec, home) as running:
            until(lambda: list((home / ".fleet").glob("builds/b1")))
            time.sleep(0.3)
            assert running.process.stdin
            running.process.stdin.close()
            assert running.process.wait(300) is not None
    assert not list((home / ".fleet/builds").iterdir())
