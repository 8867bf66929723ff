"""`fleet sync` and `fleet launch` at the same time, and one after the other was killed: no run from a mixture."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.virtual_lab import VirtualLab

FILES = 3000
# Kills whoever holds the lock of the sync to ~/half as soon as the first new file has its place.
KILLER = """
import glob, os, signal, time
until = time.monotonic() + 60
lock, holders = "/root/.half.fleet-sync/lock", []
while not holders and time.monotonic() < until:
    for fd in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(fd) == lock:
                holders.append(int(fd.split("/")[2]))
        except OSError:
            pass
while time.monotonic() < until:
    try:
        if open("/root/half/f0000").read() == "new":
            break
    except OSError:
        pass
for pid in holders:
    os.kill(pid, signal.SIGKILL)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "job").write_text("#!/bin/sh\ncat part; sleep ${1:-0}; cat part\n")
    (folder / "job").chmod(0o755)
    (folder / "part").write_text("old")
    return folder


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a head whose rsync never comes to an end."""
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin/rsync"
    stub.write_text(f"#!/bin/sh\necho $$ >>{stub}.pids\nexec sleep 300\n")
    stub.chmod(0o755)
    yield {"PATH": f"{stub.parent}:{os.environ['PATH']}"}
    for pid in map(int, (tmp_path / "bin/rsync.pids").read_text().split()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def launch(lab: VirtualLab, tmp_path: Path, workdir: str, *more: str) -> subprocess.CompletedProcess[str]:
    return lab.fleet("-i", "lab", "launch", "--engine", "command", "--workdir", workdir, *more, "./job", cwd=tmp_path)


def hang(lab: VirtualLab, source: Path, to: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A sync that holds its locks and comes no further, with a file that is large enough for rsync."""
    (source / "large").write_bytes(os.urandom(2 << 20))
    process = lab.popen("-i", "lab", "sync", str(source), "--to", to, env=env)
    pids = Path(env["PATH"].split(":")[0], "rsync.pids")
    until = time.monotonic() + 60
    while not (pids.exists() and len(pids.read_text().split()) == len(lab.names)) and time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.05)
    return process


def test_a_node_whose_sync_was_killed_between_two_renames(ready_lab: VirtualLab, source: Path, tmp_path: Path) -> None:
    for i in range(FILES):
        (source / f"f{i:04}").write_text("old")
    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/half", check=True)
    for i in range(FILES):
        (source / f"f{i:04}").write_text("new")
    victim = ready_lab.names[2]
    enter = ["nsenter", "-t", str(ready_lab.hosts[victim]["pid"]), "-a", "/usr/bin/python3", "-c", KILLER]
    with subprocess.Popen(enter) as killer:
        done = ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/half")
        killer.wait(60)
    assert done.returncode == 1 and victim in done.stderr, done.stderr
    mixture = ready_lab.sh(victim, "cat /root/half/f* | grep -o new | wc -l")
    assert 0 < int(mixture) < FILES

    refused = launch(ready_lab, tmp_path, "~/half")
    assert refused.returncode == 123, refused.stderr
    assert f"{victim}: a sync to /root/half was interrupted while it put files in place" in refused.stderr
    assert "hint: run 'fleet -i lab sync' again" in refused.stderr and "nothing was started" in refused.stderr
    there = tmp_path / "there.yaml"
    there.write_text(ready_lab.inventory.read_text().replace("workdir: ~/work", "workdir: ~/half"))
    checked = ready_lab.fleet("-i", str(there), "check", "-q", "--engine", "command")
    assert checked.returncode == 123 and f"{victim}: a sync to /root/half was interrupted" in checked.stdout

    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/half", check=True)
    assert launch(ready_lab, tmp_path, "~/half").returncode == 0


def test_hosts_that_the_last_sync_did_not_reach(ready_lab: VirtualLab, source: Path, tmp_path: Path) -> None:
    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/uneven", check=True)
    (source / "part").write_text("new")
    behind = ready_lab.names[3]
    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/uneven", "-x", behind, check=True)
    done = launch(ready_lab, tmp_path, "~/uneven", "--json")
    assert done.returncode == 123
    found = [line for line in map(json.loads, done.stdout.splitlines()) if line.get("event") == "finding"]
    assert [f["hosts"] for f in found] == [[behind]] and "the code that was synced differs" in found[0]["message"]


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_launch_and_a_second_sync_while_one_stages(
    ready_lab: VirtualLab, source: Path, tmp_path: Path, stuck: dict[str, str], how: str
) -> None:
    to = f"~/staged-{how}"
    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", to, check=True)
    (source / "part").write_text("new")
    first = hang(ready_lab, source, to, stuck)
    try:
        refused = launch(ready_lab, tmp_path, to)
        assert refused.returncode == 123, refused.stderr
        holder = f"from {os.uname().nodename} (pid {first.pid})"
        assert f"a sync to /root/{to[2:]} is under way, {holder}" in refused.stderr
        assert "launch again when it has ended" in refused.stderr
        first.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        if how == "frozen":
            second = ready_lab.fleet("-i", "lab", "sync", str(source), "--to", to)
            assert second.returncode == 1 and f"another sync to the same folder is under way, {holder}" in second.stderr
            first.kill()
        ready_lab.fleet("-i", "lab", "sync", str(source), "--to", to, check=True)
    finally:
        first.kill()
        first.communicate(timeout=90)
    after = launch(ready_lab, tmp_path, to)
    assert after.returncode == 0 and after.stdout.count("newnew") == 4, after.stderr


def test_a_sync_waits_for_a_run_that_begins(ready_lab: VirtualLab, source: Path, tmp_path: Path) -> None:
    ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/begins", check=True)
    run = ready_lab.popen(
        "-i",
        "lab",
        "launch",
        "--engine",
        "command",
        "--workdir",
        "~/begins",
        "--name",
        "early",
        "./job",
        "5",
        cwd=tmp_path,
    )
    seen = tmp_path / "runs"
    until = time.monotonic() + 60
    while not any(seen.glob("*/*/rank*.out")) and time.monotonic() < until:
        time.sleep(0.05)
    (source / "part").write_text("new")
    done = ready_lab.fleet("-i", "lab", "sync", str(source), "--to", "~/begins", check=True)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert out.decode().count("oldold") == 4, "one tree from its start to its end"
    assert done.stderr.count("waiting until run early-") == 1 and "sent" in done.stdout
