"""Runs that go on without their head: left, found, taken up again, stopped; every line on the head as on the nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.test_launch import (  # noqa: F401 (fixtures)
    COMMON,
    Launch,
    background,
    events,
    launch,
    left_on,
    ready,
    sha256,
    summary,
    until,
)
from tests.lab.virtual_lab import VirtualLab

Background = Callable[..., subprocess.Popen[bytes]]


def folder_of(folder: Path) -> Path:
    (run,) = folder.glob("runs/*-*")
    return run


def ps(lab: VirtualLab, folder: Path, *options: str) -> list[dict[str, Any]]:
    done = lab.fleet("-i", "lab", "ps", "--json", *options, cwd=folder, check=True)
    return list(json.loads(done.stdout)["runs"])


def mine(lab: VirtualLab, folder: Path, *options: str) -> dict[str, Any]:
    """The run of a folder, as the nodes tell of it."""
    runs = ps(lab, folder, *options)
    found = [run for run in runs if run["run"] == folder_of(folder).name]
    told = (folder_of(folder) / "events.jsonl").read_text().splitlines()
    assert len(found) == 1, "\n".join([str(runs), *told[-20:]])
    return found[0]


def assert_same_logs(lab: VirtualLab, folder: Path) -> None:
    run = folder_of(folder)
    for host in lab.names:
        said = lab.sh(host, f"cd ~/.fleet/runs/{run.name} && sha256sum rank*.out rank*.err")
        there = {name: digest for digest, name in (line.split() for line in said.splitlines())}
        assert there == {name: sha256(run / host / name) for name in there}, host


def test_a_run_is_left_found_taken_up_left_again_and_stopped(launch: Launch, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    done = launch("--detach", "--node-timeout", "8", "./s.py", "ticks", "-1")
    assert done.returncode == 0 and "goes on by itself" in done.stderr, done.stderr
    assert done.stdout.count("tick") < 80000, f"it was not left: {done.stdout[-500:]}"
    run = folder_of(tmp_path).name
    launched = mine(ready, tmp_path)
    assert (launched["state"], launched["lease"], launched["world_size"]) == ("running", None, 6), launched
    assert len(launched["nodes"]) == 3 and "@" in launched["owner"] and launched["engine"] == "command"
    # this machine's own link, for longer than --node-timeout; all at once, or the first host is lost alone
    ready.fleet("lab", "cut", *ready.names, check=True)
    time.sleep(11)
    ready.fleet("lab", "heal", *ready.names, check=True)
    assert mine(ready, tmp_path)["state"] == "running"

    attached = ready.popen("-i", "lab", "attach", run[:-4], cwd=tmp_path)
    assert attached.stdout and attached.stdout.read(7)
    second = ready.popen("-i", "lab", "attach", "latest", cwd=tmp_path)
    assert second.stdout and second.stdout.read(7)
    for looks in (attached, second):  # the leader stayed
        os.kill(looks.pid, signal.SIGINT)
        said = looks.communicate(timeout=300)[1].decode()
        assert looks.returncode == 0 and f"run {run} goes on as before" in said, said

    other = tmp_path / "another head"
    other.mkdir()
    shown = ready.fleet("-i", "lab", "logs", run, "--rank", "5", "--tail", "3", cwd=other, check=True).stdout
    assert shown.splitlines()[-1].startswith("tick ") and len(shown.splitlines()) == 3, shown
    stopped = ready.fleet("-i", "lab", "stop", run, cwd=other, check=True)
    assert "lab[01-03]: stopped" in stopped.stdout.replace(ready.instance, "lab"), stopped.stdout
    until(lambda: (folder_of(tmp_path) / "summary.json").exists())
    ended = summary(tmp_path)
    assert ended["exit_code"] == 130 and "stopped by" in ended["stopped"], ended
    assert mine(ready, tmp_path, "--all")["state"] == "stopped" and ps(ready, tmp_path) == []
    assert not left_on(ready, tmp_path)
    assert_same_logs(ready, tmp_path)


def test_a_killed_head_is_replaced_within_the_lease(background: Background, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    process = background("--lease", "60", "./s.py", "ticks", "90")
    process.kill()
    process.wait()
    attached = ready.fleet("-i", "lab", "attach", cwd=tmp_path)
    assert attached.returncode == 0, attached.stderr
    assert summary(tmp_path)["exit_code"] == 0 and not summary(tmp_path)["incomplete_logs"]
    out = (folder_of(tmp_path) / ready.names[2] / "rank4.out").read_text()
    assert out.splitlines() == [f"tick {n}" for n in range(90)]
    assert_same_logs(ready, tmp_path)
    again = ready.fleet("-i", "lab", "attach", cwd=tmp_path)  # it is over: the same once more
    assert again.returncode == 0 and summary(tmp_path)["seconds"] < 300, again.stderr


def test_a_failure_of_a_detached_run_ends_it_everywhere(launch: Launch, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    assert launch("--detach", "--grace", "1", "./s.py", "raise", "3").returncode == 0
    until(lambda: (folder_of(tmp_path) / "summary.json").exists())
    ended = summary(tmp_path)
    assert ended["exit_code"] == 1 and ended["first_failure"]["rank"] == 3, ended["first_failure"]
    assert not left_on(ready, tmp_path)
    attached = ready.fleet("-i", "lab", "attach", cwd=tmp_path)
    assert attached.returncode == 1 and "boom 3" in attached.stderr
    assert "boom 3" in ready.fleet("-i", "lab", "logs", "--err", cwd=tmp_path, check=True).stdout


def test_what_is_no_run_is_said(ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    for verb in ("stop", "attach", "logs"):
        done = ready.fleet("-i", "lab", verb, "no-such-run", cwd=tmp_path)
        assert done.returncode == 2 and "no run no-such-run" in done.stderr, done.stderr
        assert not (tmp_path / "runs").exists()
