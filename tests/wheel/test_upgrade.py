"""fleet is replaced while a run is live: whoever comes then lists the run, reads its logs and stops it, and the process
that leads it goes on with the code that it began with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wheel.packages import ROOT, run, sources

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
TICKS = "echo tick 0; trap 'echo saved; exit 0' TERM; while :; do sleep 0.2; done\n"


def put(tree: Path, site: Path) -> None:
    """What a wheel of the tree holds is all that is in `site`."""
    run(sys.executable, "-c", BUILD, tree.parent, cwd=tree)
    (wheel,) = tree.parent.glob("*.whl")
    shutil.rmtree(site, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def commit_before(tree: Path) -> None:
    """The commit before this one; in a clone that has none, this one as it was committed."""
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT)]
    before = subprocess.run([*git, "rev-parse", "--verify", "--quiet", "HEAD~1"], capture_output=True, check=False)
    name = "HEAD" if before.returncode else "HEAD~1"
    archive = subprocess.run([*git, "archive", name], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.slow
def test_a_run_of_the_commit_before_is_listed_read_and_stopped(tmp_path: Path) -> None:
    before, now, site, work = (tmp_path / name for name in ("before/tree", "now/tree", "site", "work"))
    for folder in (before, now, work):
        folder.mkdir(parents=True)
    commit_before(before)
    run("cp", "-a", "--parents", *sources(), now, cwd=ROOT)
    (work / "hosts.yaml").write_text(f"defaults: {{workdir: {work}}}\nhosts:\n  n1: {{address: 127.0.0.1}}\n")
    (work / "ticks.sh").write_text(TICKS)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLEET"))}

    def fleet(*words: str) -> str:
        argv = [sys.executable, "-m", "fleet", "-i", "hosts.yaml", "--transport", "local", *words]
        mine = {**env, "HOME": str(tmp_path), "PYTHONPATH": str(site)}
        done = subprocess.run(argv, cwd=work, env=mine, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    put(before, site)
    fleet("launch", "--detach", "--engine", "command", "--name", "left", "ticks.sh")
    try:
        put(now, site)
        (listed,) = json.loads(fleet("--json", "ps"))["runs"]
        assert (listed["run"].startswith("left-"), listed["state"], listed["ranks_up"]) == (True, "running", 1)
        until(lambda: "tick 0" in fleet("logs", "left"))
    finally:
        stopped = fleet("stop", "left")
    assert "n1: stopped" in stopped
    summary = work / "runs" / listed["run"] / "summary.json"
    until(summary.exists)  # by who leads it
    end = json.loads(summary.read_text())
    assert end["exit_code"] == 130 and end["incomplete_logs"] == []
    assert json.loads(fleet("--json", "ps"))["runs"] == []
    assert "saved" in fleet("logs", "left")
