"""fleet is replaced by another version while runs are live: each side lists, reads, follows and stops the other's."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.test_launch import COMMON, Launch, end_all, launch, left_on, ready, summary, until  # noqa: F401 (fixtures)
from tests.lab.test_runs import assert_same_logs, folder_of, mine, ps
from tests.lab.virtual_lab import VirtualLab

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
OLD = "e2f2191038d0663ea3831cb7e2908e992936ee0f"  # the commit whose keepers were sent pickles
TICKS = ("--lease", "30", "./s.py", "ticks", "-1")


def program(tree: Path) -> str:
    """A fleet of its own, which is `tree`'s."""
    file = tree / "fleet-here"
    file.write_text(f'#!/bin/sh\nPYTHONPATH={tree} exec {sys.executable} -m fleet "$@"\n')
    file.chmod(0o755)
    return str(file)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> str:
    tree = tmp_path_factory.mktemp("old")
    done = subprocess.run(["git", "-C", ROOT, "archive", OLD, "fleet"], capture_output=True)
    if done.returncode:
        pytest.skip(f"{OLD[:7]} is not in this clone's history")
    subprocess.run(["tar", "-x", "-C", tree], input=done.stdout, check=True)
    return program(tree)


def test_the_new_head_reads_and_stops_what_an_old_one_left(old: str, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    try:
        done = subprocess.run(
            [old, *COMMON, "--detach", *TICKS], cwd=tmp_path, env=ready.env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        run = folder_of(tmp_path).name
        assert mine(ready, tmp_path)["state"] == "running"
        shown = ready.fleet("-i", "lab", "logs", run, "--rank", "1", "--tail", "2", cwd=tmp_path, check=True).stdout
        assert len(re.findall("tick [0-9]+", shown)) >= 2, shown  # it goes on writing

        attached = ready.popen("-i", "lab", "attach", run, cwd=tmp_path)  # the old keeper gives way
        assert attached.stdout and b"tick" in attached.stdout.readline()
        os.kill(attached.pid, signal.SIGINT)
        told = attached.communicate(timeout=300)[1].decode()
        assert attached.returncode == 0 and run in told, told
        assert mine(ready, tmp_path)["state"] == "running"

        stopped = ready.fleet("-i", "lab", "stop", run, cwd=tmp_path)
        assert stopped.returncode == 0 and "stopped" in stopped.stdout, stopped.stderr
        until(lambda: (folder_of(tmp_path) / "summary.json").exists())
        assert summary(tmp_path)["exit_code"] == 130 and ps(ready, tmp_path) == [] and not left_on(ready, tmp_path)
        assert_same_logs(ready, tmp_path)
    finally:
        end_all(ready, tmp_path)


def test_the_new_head_looks_on_and_stops_what_an_old_one_follows(old: str, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    head = subprocess.Popen(
        [old, *COMMON, *TICKS], cwd=tmp_path, env=ready.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert head.stdout and b"tick" in head.stdout.readline()
        run = folder_of(tmp_path).name
        other = tmp_path / "other"
        other.mkdir()
        looking = ready.popen("-i", "lab", "attach", run, cwd=other)
        assert looking.stdout and b"tick" in looking.stdout.readline()
        assert ready.fleet("-i", "lab", "stop", run, cwd=other).returncode == 0
        error = head.communicate(timeout=300)[1].decode()
        told = looking.communicate(timeout=300)[1].decode()
        assert head.returncode == 130, error  # its own end is told as one that was asked for
        assert looking.returncode == 130 and "stopped by" in told, told
    finally:
        head.kill()
        head.communicate()
        end_all(ready, tmp_path)


def test_a_run_that_an_old_head_saw_fail_is_read(old: str, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    argv = [old, *COMMON, "./s.py", "raise", "3"]
    done = subprocess.run(argv, cwd=tmp_path, env=ready.env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    run = folder_of(tmp_path).name
    assert mine(ready, tmp_path, "--all")["state"] == "failed"
    (row,) = json.loads(ready.fleet("runs", "--json", cwd=tmp_path, check=True).stdout)["runs"]
    assert row["run"] == run and row["exit_code"] == 1
    attached = ready.fleet("-i", "lab", "attach", run, cwd=tmp_path)
    assert attached.returncode == 1 and "RuntimeError: boom 3" in attached.stderr, attached.stderr
    again = ready.fleet("-i", "lab", "launch", "--again", run, "--dry-run", cwd=tmp_path)
    assert again.returncode == 0 and "s.py" in again.stdout, again.stderr


def upgraded(tree: Path) -> None:
    """Another version lies where fleet was, with today's promised names (ops/background.py) and a module renamed."""
    shutil.rmtree(tree / "fleet")
    shutil.copytree(ROOT / "fleet", tree / "fleet", ignore=shutil.ignore_patterns("__pycache__"))
    version = tree / "fleet/version.py"
    version.write_text(re.sub('"[^"]+"', '"9.9.9"', version.read_text(), count=1))
    (tree / "fleet/ops/run/launch/keeper.py").rename(tree / "fleet/ops/run/launch/tomorrows_keeper.py")
    for path in (tree / "fleet").rglob("*.py"):
        path.write_text(path.read_text().replace("ops.run.launch.keeper", "ops.run.launch.tomorrows_keeper"))


def test_a_run_whose_fleet_was_replaced_is_left_followed(
    launch: Launch,  # noqa: F811
    ready: VirtualLab,  # noqa: F811
    tmp_path: Path,
) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "fleet", tree / "fleet", ignore=shutil.ignore_patterns("__pycache__"))
    argv = [program(tree), *COMMON, *TICKS]
    pid, screen = pty.fork()
    if pid == 0:
        try:
            os.chdir(tmp_path)
            os.execve(argv[0], argv, ready.env)
        finally:
            os._exit(99)  # never a second pytest
    shown = _read(screen, lambda text: text.count(b"tick") > 20)
    upgraded(tree)
    os.write(screen, b"d")
    shown += _read(screen, lambda text: b"goes on by itself" in text)
    os.close(screen)
    os.waitpid(pid, 0)
    assert b"goes on by itself" in shown, shown[-2000:]
    run = folder_of(tmp_path)
    until(lambda: json.loads(ready.fleet("runs", "--json", cwd=tmp_path).stdout)["runs"][0]["state"] == "followed")
    log = run / "keeper.log"
    assert "Error" not in (log.read_text() if log.exists() else ""), log.read_text()
    size = (run / ready.names[0] / "rank0.out").stat().st_size
    until(lambda: (run / ready.names[0] / "rank0.out").stat().st_size > size)
    assert ready.fleet("-i", "lab", "stop", run.name, cwd=tmp_path).returncode == 0
    until(lambda: (run / "summary.json").exists())


def _read(screen: int, enough: Callable[[bytes], bool]) -> bytes:
    shown, until_then = b"", time.monotonic() + 120
    while not enough(shown) and time.monotonic() < until_then:
        if select.select([screen], [], [], 1)[0]:
            try:
                shown += os.read(screen, 65536)
            except OSError:
                break
    return shown
