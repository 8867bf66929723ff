"""The process that leads a run, and the one that was typed: whatever becomes of a terminal, the run is led, or ends by
its lease."""

from __future__ import annotations

import array
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import termios
import time
from pathlib import Path
from typing import IO

import pytest

from tests.lab.test_launch import (  # noqa: F401 (fixtures)
    COMMON,
    Launch,
    background,
    launch,
    left_on,
    ready,
    summary,
    until,
)
from tests.lab.test_runs import Background, folder_of, mine
from tests.lab.virtual_lab import VirtualLab
from tests.leaders import holder, leader_of

DETACHED = (*COMMON, "--detach", "--lease", "8", "./s.py", "ticks", "-1")
BEGUN = {"preflight": rb"preflight", "ranks": rb"logs in"}


def held_by(pipe: IO[bytes]) -> int:
    """Returns how many bytes a pipe holds that nobody has read."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "how, moment",
    [
        ("hung up", "ranks"),
        pytest.param("killed", "preflight", marks=pytest.mark.slow),
        pytest.param("hung up", "preflight", marks=pytest.mark.slow),
        pytest.param("killed", "ranks", marks=pytest.mark.slow),
    ],
)
def test_a_terminal_that_goes_while_a_detached_run_begins(
    how: str,
    moment: str,
    ready: VirtualLab,  # noqa: F811
    tmp_path: Path,
) -> None:
    pid, screen = pty.fork()
    if pid == 0:
        try:
            os.chdir(tmp_path)
            os.execve(ready.program, [ready.program, *DETACHED], ready.env)
        finally:
            os._exit(99)  # never a second pytest
    shown, until_then = b"", time.monotonic() + 120
    while not re.search(BEGUN[moment], shown) and time.monotonic() < until_then:
        if select.select([screen], [], [], 1)[0]:
            shown += os.read(screen, 65536)
    if how == "hung up":
        os.close(screen)
    else:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    time.sleep(11)  # longer than its lease
    runs = list(tmp_path.glob("runs/*-*/events.jsonl"))
    began = bool(runs) and b'"event": "running"' in runs[0].read_bytes()
    assert began or moment == "preflight", shown
    if began:
        found = mine(ready, tmp_path)
        assert (found["state"], found["lease"], len(found["nodes"])) == ("running", None, len(ready.names)), found
        assert alive(holder(folder_of(tmp_path)))
        ready.fleet("-i", "lab", "stop", "latest", cwd=tmp_path, check=True)
    if runs:
        until(lambda: not left_on(ready, tmp_path))


def test_a_leader_that_is_killed_is_named_and_its_lease_ends_the_run(
    background: Background,  # noqa: F811
    ready: VirtualLab,  # noqa: F811
    tmp_path: Path,
) -> None:
    process = background("--lease", "6", "./s.py", "ticks", "-1")
    os.kill(leader_of(process.pid), signal.SIGKILL)
    said = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 137 and "the process that led the run was killed, by signal 9" in said, said
    until(lambda: not left_on(ready, tmp_path))


def test_a_run_without_its_leader_is_unattended_and_led_again(
    launch: Launch,  # noqa: F811
    ready: VirtualLab,  # noqa: F811
    tmp_path: Path,
) -> None:
    assert launch("--detach", "./s.py", "ticks", "-1").returncode == 0
    run = folder_of(tmp_path)
    os.kill(holder(run), signal.SIGKILL)
    shown: list[subprocess.CompletedProcess[str]] = []

    def unattended() -> bool:
        shown.append(ready.fleet("runs", cwd=tmp_path, check=True))
        return f"{run.name}  unattended" in shown[-1].stdout

    until(unattended)
    assert f"hint: fleet attach --detach {run.name}" in shown[-1].stderr, shown[-1].stderr

    def states() -> list[str]:
        return [each["state"] for each in json.loads(ready.fleet("runs", "--json", cwd=tmp_path).stdout)["runs"]]

    assert states() == ["unattended"]  # who reads starts nothing
    ready.fleet("-i", "lab", "attach", "--detach", run.name, cwd=tmp_path, check=True)
    until(lambda: states() == ["followed"])
    ready.fleet("-i", "lab", "stop", "latest", cwd=tmp_path, check=True)
    until(lambda: (run / "summary.json").exists())
    assert summary(tmp_path)["exit_code"] == 130 and not summary(tmp_path)["incomplete_logs"]


@pytest.mark.slow
def test_who_shows_logs_makes_way_for_who_leads(
    background: Background,  # noqa: F811
    ready: VirtualLab,  # noqa: F811
    tmp_path: Path,
) -> None:
    head = background("--lease", "60", "sh", "-c", "yes | head -c 100000; exec sleep 600")
    head.kill()
    head.wait()
    shows = ready.popen("-i", "lab", "logs", "-f", "latest", cwd=tmp_path)
    pipe = shows.stdout
    assert pipe
    until(lambda: held_by(pipe) > 60_000)  # its pipe is full: nobody reads, as in a pager
    attached = ready.popen("-i", "lab", "attach", cwd=tmp_path)
    until(lambda: holder(folder_of(tmp_path)) == leader_of(attached.pid))
    assert shows.poll() is None
    ready.fleet("-i", "lab", "stop", "latest", cwd=tmp_path, check=True)
    assert attached.communicate(timeout=300) and attached.returncode == 130
    assert shows.communicate(timeout=300) and shows.returncode == 0


@pytest.mark.slow
def test_two_copies_of_a_runs_folder_do_not_both_lead(
    background: Background,  # noqa: F811
    ready: VirtualLab,  # noqa: F811
    tmp_path: Path,
) -> None:
    """As on two machines that share no locks: the later one leads, and what the earlier one asks for is refused."""
    head = background("--lease", "60", "--node-timeout", "8", "./s.py", "ticks", "-1")
    shutil.copytree(tmp_path / "runs", tmp_path / "elsewhere/runs", symlinks=True)
    later = ready.popen("-i", "lab", "attach", cwd=tmp_path / "elsewhere")
    events = folder_of(tmp_path) / "events.jsonl"
    until(lambda: '"event": "superseded"' in events.read_text())
    head.send_signal(signal.SIGINT)
    said = head.communicate(timeout=300)[1].decode()
    assert head.returncode == 0 and "goes on as before" in said, said
    assert mine(ready, tmp_path)["state"] == "running"
    later.send_signal(signal.SIGINT)
    assert later.communicate(timeout=300) and later.returncode == 0
    assert mine(ready, tmp_path)["lease"] is None, "who leads it has left it to itself"
    ready.fleet("-i", "lab", "stop", "latest", cwd=tmp_path / "elsewhere", check=True)
    until(lambda: not left_on(ready, tmp_path))


@pytest.mark.slow
def test_a_run_whose_hosts_are_gone_is_forgotten(launch: Launch, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    assert launch("--detach", "./s.py", "ticks", "-1").returncode == 0
    run, leader = folder_of(tmp_path), holder(folder_of(tmp_path))
    ready.fleet("lab", "cut", *ready.names, check=True)
    try:
        done = ready.fleet("-i", "lab", "forget", "latest", cwd=tmp_path)
        assert done.returncode == 0 and "given up" in done.stdout, done.stderr
        until(lambda: not alive(leader))
        assert summary(tmp_path)["forgotten"] and summary(tmp_path)["exit_code"] == 130
        assert run.name in ready.fleet("runs", "--prune", "--keep", "0", "--dry-run", cwd=tmp_path, check=True).stdout
    finally:
        ready.fleet("lab", "heal", *ready.names, check=True)
        ready.fleet("-i", "lab", "stop", run.name, cwd=tmp_path)
