"""Which host or link a run waits for, by a real torchrun over gloo: named within a minute while it goes on; where hosts
differ by chance alone, none is."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.node.base.processes import pids
from tests.lab.test_launch import end_all, until
from tests.lab.virtual_lab import VirtualLab

pytestmark = pytest.mark.alone

# a step is work of a CPU, uneven by chance, then an all_reduce of so many MB
TRAIN = """\
import random, sys, time
import torch, torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
work, spread, megabytes, seconds = map(float, sys.argv[1:])
until, data, x = time.time() + seconds, torch.ones(int(megabytes * 250_000)), torch.rand(64, 64)
over = torch.zeros(1)
while not over.item():
    end = time.thread_time() + random.uniform(1 - spread, 1 + spread) * work
    while time.thread_time() < end:
        x @ x
    dist.all_reduce(data)
    over.fill_(time.time() > until)
    dist.all_reduce(over)
dist.destroy_process_group()
"""
V1 = Path("/sys/fs/cgroup/cpu").is_dir()
CPU = Path("/sys/fs/cgroup/cpu") if V1 else Path("/sys/fs/cgroup")
PERIOD = 50_000  # microseconds


def move(lab: VirtualLab, host: str, group: Path) -> None:
    """Puts the host's processes into a group; what these start is in it, too."""
    space = Path(f"/proc/{lab.hosts[host]['pid']}/ns/pid").readlink()
    for pid in pids():
        with contextlib.suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/ns/pid").readlink() == space:
                (group / "cgroup.procs").write_text(str(pid))


@pytest.fixture(scope="module")
def four(lab: VirtualLab) -> Iterator[VirtualLab]:
    """Four hosts with the program, in a group of processes that others on this machine leave its share."""
    lab.enrol()
    whole = CPU / f"fleet-{lab.instance}"
    rest = whole / "rest"
    whole.mkdir()
    try:
        if V1:
            (whole / "cpu.shares").write_text("100000")
        else:
            (CPU / "cgroup.subtree_control").write_text("+cpu")
            (whole / "cgroup.subtree_control").write_text("+cpu")
            (whole / "cpu.weight").write_text("10000")
        rest.mkdir()
        for host in lab.names:
            lab.inside(host, "sh", "-c", "mkdir -p /root/slow && cat > /root/slow/train.py", stdin=TRAIN.encode())
            move(lab, host, rest)
        yield lab
    finally:
        for group in (rest, whole):
            until(lambda: _empty(group, CPU))  # noqa: B023
            group.rmdir()


@pytest.fixture
def a_fifth_of_a_cpu(four: VirtualLab) -> Iterator[str]:
    """Gives the third host a fifth of one CPU."""
    host, rest = four.names[2], CPU / f"fleet-{four.instance}/rest"
    group = rest.with_name("slow")
    group.mkdir()
    try:
        if V1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(PERIOD // 5))
        else:
            (group / "cpu.max").write_text(f"{PERIOD // 5} {PERIOD}")
        move(four, host, group)
        yield host
    finally:
        until(lambda: _empty(group, rest))
        group.rmdir()


def _empty(group: Path, into: Path) -> bool:
    """Moves what is in a group into another one; returns whether nothing is left."""
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            (into / "cgroup.procs").write_text(pid)
    return not (group / "cgroup.procs").read_text()


@pytest.fixture
def a_tenth_of_the_link(four: VirtualLab) -> Iterator[str]:
    host = four.names[2]
    four.fleet("lab", "link", *four.names, "400mbit", check=True)
    four.fleet("lab", "link", host, "40mbit", check=True)
    yield host
    four.fleet("lab", "link", *four.names, "none", check=True)


def begin(lab: VirtualLab, folder: Path, *args: str) -> subprocess.Popen[bytes]:
    return lab.popen(
        *("-i", "lab", "launch", "--python", sys.executable, "--workdir", "/root/slow", "train.py"),
        *args,
        cwd=folder,
    )


def events(folder: Path) -> list[dict[str, Any]]:
    texts = [path.read_text() for path in folder.glob("runs/*-*/events.jsonl")]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def kinds(folder: Path) -> set[str]:
    return {event["event"] for event in events(folder)}


def named(folder: Path) -> list[str]:
    """Returns the hosts that the run's events name, as often as they do."""
    return [host for event in events(folder) if event["event"] == "slow-host" for host in event["hosts"]]


def seconds_until_named(process: subprocess.Popen[bytes], folder: Path) -> float:
    """Returns how long after the nodes' start a host was named."""
    until(lambda: "running" in kinds(folder), process=process)
    began = time.monotonic()
    until(lambda: named(folder), 90, process=process)
    return time.monotonic() - began


@pytest.fixture
def folder(four: VirtualLab, tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end_all(four, tmp_path)


def test_a_host_with_a_fifth_of_a_cpu_is_named(four: VirtualLab, a_fifth_of_a_cpu: str, folder: Path) -> None:
    process = begin(four, folder, "0.05", "0.2", "0.01", "65")
    assert seconds_until_named(process, folder) <= 60
    process.communicate(timeout=300)
    assert process.returncode == 0 and named(folder) == [a_fifth_of_a_cpu]
    slow = json.loads(next(folder.glob("runs/*-*/summary.json")).read_text())["slow"]
    assert slow["hosts"] == [a_fifth_of_a_cpu] and "CPUs" in slow["evidence"]


def test_a_host_with_a_tenth_of_the_link_is_named(four: VirtualLab, a_tenth_of_the_link: str, folder: Path) -> None:
    process = begin(four, folder, "0.01", "0.2", "4", "90")
    assert seconds_until_named(process, folder) <= 60
    process.communicate(timeout=300)
    assert process.returncode == 0 and a_tenth_of_the_link in named(folder)


@pytest.mark.parametrize("spread", ["0.1", "0.5", "0.9"])
def test_chance_alone_names_no_host(spread: str, four: VirtualLab, folder: Path) -> None:
    process = begin(four, folder, "0.02", spread, "0.5", "60")
    said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert (
        named(folder) == [] and json.loads(next(folder.glob("runs/*-*/summary.json")).read_text()).get("slow") is None
    )
