"""Wheels on the way to hosts that freeze, die or have no room, and Ctrl-C: who has what is told as it is, nothing is
half installed, and the next run completes it."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.lab.processes import freeze
from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab
from tests.wheelmaker import make_wheel

pytestmark = pytest.mark.slow
PYTHON = "/opt/train/bin/python3"
SITE = "/opt/train/lib/python3*/site-packages"
RECEIVING = "find /root/.fleet/wheels -type f -size +1M | grep ."


@pytest.fixture(scope="module")
def lab3(breakable: BreakableLab) -> VirtualLab:
    """Narrow links; the environment and ~/.fleet share a disk with little room."""
    lab = breakable.enrol().first(3)
    lines = [f"  {n}: {{address: {lab.address(n)}, python: {PYTHON}}}" for n in lab.names]
    (lab.home / "own.yaml").write_text("defaults: {user: root}\nhosts:\n" + "\n".join(lines) + "\n")
    for name in lab.names:
        lab.fleet("lab", "link", name, "50mbit", check=True)
        lab.sh(
            name,
            "mkdir -p /vol /opt/train /root/.fleet && mount -t tmpfs -o size=300m none /vol && "
            "mkdir /vol/train /vol/fleet && mount --bind /vol/train /opt/train && "
            "mount --bind /vol/fleet /root/.fleet && "
            f"{sys.executable} -m venv --without-pip /opt/train && "
            f"echo {sysconfig.get_path('purelib')} > $(echo {SITE})/behind.pth",
        )
    return lab


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """45 MiB as a wheel, 60 installed."""
    parts = {f"largepkg/{i}.txt": base64.b64encode(os.urandom(3 << 18)).decode() for i in range(60)}
    return make_wheel(tmp_path_factory.mktemp("w"), "largepkg", files={"largepkg/__init__.py": "", **parts}).parent


@pytest.fixture
def afresh(lab3: VirtualLab) -> Iterator[None]:
    yield
    lab3.fleet("-i", "own.yaml", "exec", "--shell", f"rm -rf {SITE}/largepkg* ~/.fleet/wheels", check=True)


def start(lab: VirtualLab, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    return lab.popen("-i", "own.yaml", *more, "sync", "--wheels", str(folder))


def until(lab: VirtualLab, host: str, line: str, process: subprocess.Popen[bytes]) -> None:
    """The shell line succeeds on the host, while fleet still runs."""
    deadline = time.monotonic() + 300
    while lab.inside(host, "sh", "-c", line, check=False).returncode:
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.02)


def end(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], str]:
    out, err = process.communicate(timeout=300)
    assert b"Traceback" not in err, err
    return json.loads(out), err.decode()


def completes(lab: VirtualLab, folder: Path, name: str) -> None:
    done = lab.fleet("-i", "own.yaml", "sync", "--wheels", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    for host in lab.names:
        assert lab.sh(host, f"{PYTHON} -c 'import {name}' && ls -A ~/.fleet/wheels") == "verified"


@pytest.mark.usefixtures("afresh")
def test_a_host_that_freezes_while_it_receives(lab3: VirtualLab, large: Path) -> None:
    victim, others = lab3.names[1], {lab3.names[0], lab3.names[2]}
    process = start(lab3, large, "--json")
    until(lab3, victim, RECEIVING, process)
    freeze(lab3.hosts[victim]["pid"])  # at once: a busy machine comes to `lab freeze` when it has all
    try:
        said, _err = end(process)
    finally:
        lab3.fleet("lab", "heal", victim, check=True)
    hosts = said["hosts"]
    assert hosts[victim]["error"]["kind"] == "lost" and "frozen" in hosts[victim]["error"]["message"], hosts
    assert {hosts[name]["error"]["message"] for name in others} == {f"not installed: {victim} could not"}
    assert {host["wheels"]["largepkg"] for host in hosts.values()} == {"absent"} and process.returncode != 0
    completes(lab3, large, "largepkg")


def test_a_host_that_freezes_while_it_imports(lab3: VirtualLab, tmp_path: Path) -> None:
    code = "import os, time\nwhile os.path.exists('/opt/slow'):\n    open('/opt/begun', 'w')\n    time.sleep(0.1)\n"
    make_wheel(tmp_path, "slowpkg", files={"slowpkg.py": code})
    victim = lab3.names[1]
    lab3.sh(victim, "touch /opt/slow")
    process = start(lab3, tmp_path)
    until(lab3, victim, "ls /opt/begun", process)
    lab3.fleet("lab", "freeze", victim, check=True)
    try:
        out, err = process.communicate(timeout=300)
    finally:
        lab3.fleet("lab", "heal", victim, check=True)
        lab3.sh(victim, "rm /opt/slow")
    assert b"installed slowpkg 1.0" in out
    assert f"{victim}: not known: slowpkg 1.0" in out.decode()
    assert f"host {victim}: silent for 15 s" in err.decode() and b"Traceback" not in err
    completes(lab3, tmp_path, "slowpkg")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.usefixtures("afresh")
def test_ctrl_c_while_they_receive(lab3: VirtualLab, large: Path, times: int) -> None:
    process = start(lab3, large)
    until(lab3, lab3.names[2], RECEIVING, process)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130 and b"Traceback" not in err, (out, err)
    for name in lab3.names:
        assert lab3.sh(name, f"ls {SITE} | grep large", check=False) == ""
    if times == 2:
        completes(lab3, large, "largepkg")


@pytest.mark.usefixtures("afresh")
def test_no_room_for_pip_on_one_host(lab3: VirtualLab, large: Path) -> None:
    victim = lab3.names[1]
    # room for what is carried, or for what is installed, not for both
    lab3.sh(victim, "head -c $(( ($(df -m /vol | awk 'END {print $4}') - 80) << 20 )) /dev/zero > /vol/filler")
    try:
        done = lab3.fleet("-i", "own.yaml", "sync", "--wheels", str(large))
    finally:
        lab3.sh(victim, "rm /vol/filler")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{victim}: lacks largepkg 1.0" in done.stdout and "installed largepkg 1.0" in done.stdout
    assert f"host {victim}: pip: Could not install packages due to an OSError: [Errno 28]" in done.stderr
    assert "hint: free some space there" in done.stderr
    completes(lab3, large, "largepkg")


def test_a_host_that_dies_while_it_receives(lab3: VirtualLab, large: Path) -> None:
    victim = lab3.names[1]
    process = start(lab3, large, "--json")
    until(lab3, victim, RECEIVING, process)
    freeze(lab3.hosts[victim]["pid"])
    lab3.fleet("lab", "kill", victim, check=True)
    said, _err = end(process)
    assert said["hosts"][victim]["error"]["kind"] == "lost" and process.returncode != 0
    assert {host["wheels"]["largepkg"] for host in said["hosts"].values()} == {"absent"}
    rest = lab3.fleet("-i", "own.yaml", "-x", victim, "sync", "--wheels", str(large), check=True)
    assert "installed largepkg 1.0" in rest.stdout
