"""Wheels over real sshd: every host gets them, or a clear list of who has what."""

from __future__ import annotations

import base64
import json
import os
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab
from tests.wheelmaker import make_wheel

PYTHON = "/opt/train/bin/python3"


@pytest.fixture(scope="module")
def two(breakable: BreakableLab) -> VirtualLab:
    """Hosts with a training environment of their own, which sees the head's packages (pip among them)."""
    lab = breakable.enrol().first(2)
    site = sysconfig.get_path("purelib")
    for name in lab.names:
        lab.sh(
            name,
            f"{sys.executable} -m venv --without-pip /opt/train && "
            f"echo {site} > $(echo /opt/train/lib/python3*/site-packages)/behind.pth",
        )
    return lab


@pytest.fixture
def inventory(two: VirtualLab, tmp_path: Path) -> Path:
    return write_inventory(two, tmp_path / "fleet.yaml")


def write_inventory(lab: VirtualLab, path: Path, **pythons: str) -> Path:
    lines = [f"  {n}: {{address: {lab.address(n)}, python: {pythons.get(n, PYTHON)}}}" for n in lab.names]
    path.write_text("defaults: {user: root}\nhosts:\n" + "\n".join(lines) + "\n")
    return path


def test_all_hosts_have_them_then_nothing_is_to_do(two: VirtualLab, inventory: Path, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    make_wheel(folder, "tinypkg", "1.0")
    done = two.fleet("-i", str(inventory), "--json", "sync", "--wheels", str(folder), check=True)
    document = json.loads(done.stdout)
    assert {h["wheels"]["tinypkg"] for h in document["hosts"].values()} == {"installed"}
    assert document["verb"] == "sync" and document["wheels"][0]["version"] == "1.0"
    for name in two.names:
        assert two.sh(name, f"{PYTHON} -c 'import tinypkg; print(tinypkg.__version__)'") == "1.0"
    again = two.fleet("-i", str(inventory), "sync", "--wheels", str(folder), check=True)
    assert "nothing to do, it is there" in again.stdout
    # one host loses it: that one alone gets it again
    two.sh(two.names[1], "rm -r /opt/train/lib/python3*/site-packages/tinypkg")
    third = json.loads(two.fleet("-i", str(inventory), "--json", "sync", "--wheels", str(folder), check=True).stdout)
    assert [h["wheels"]["tinypkg"] for h in third["hosts"].values()] == ["there", "installed"]
    # what was carried is not left behind, and the head's own environment was not touched
    assert two.sh(two.names[0], "ls ~/.fleet/wheels") == "verified"
    assert not (Path(sysconfig.get_path("purelib")) / "tinypkg").exists()


def test_uneven_pythons_are_an_error_before_anything_is_sent(two: VirtualLab, tmp_path: Path) -> None:
    # an interpreter of another version, as far as anyone who asks it can tell
    odd = two.names[1]
    two.sh(
        odd,
        "mkdir -p /opt/odd && cat > /opt/odd/sitecustomize.py <<'E'\n"
        "import sys\nsys.version_info = (3, 9, 1, 'final', 0)\nE\n"
        f"printf '#!/bin/sh\\nPYTHONPATH=/opt/odd exec {PYTHON} \"$@\"\\n' > /opt/odd/python && chmod +x "
        "/opt/odd/python",
    )
    inventory = write_inventory(two, tmp_path / "odd.yaml", **{odd: "/opt/odd/python"})
    make_wheel(tmp_path / "w", "evenpkg")
    done = two.fleet("-i", str(inventory), "sync", "--wheels", str(tmp_path / "w"))
    assert done.returncode == 123, done.stderr
    assert "the hosts' Pythons differ" in done.stderr and "cpython 3.9 (" in done.stderr and f"on {odd}" in done.stderr
    assert "Traceback" not in done.stderr
    for name in two.names:
        assert two.sh(name, "find /root/.fleet/wheels /opt/train -name '*evenpkg*'", check=False) == ""


def test_a_wheel_for_another_platform(two: VirtualLab, inventory: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path, "armpkg", tag="cp311-cp311-manylinux_2_17_aarch64")
    done = two.fleet(
        "-i", str(inventory), "sync", "--wheels", str(tmp_path / "armpkg-1.0-cp311-cp311-manylinux_2_17_aarch64.whl")
    )
    assert done.returncode == 123
    assert "armpkg-1.0-cp311-cp311-manylinux_2_17_aarch64.whl does not fit" in done.stderr


def test_the_systems_own_python_is_left_alone(two: VirtualLab, tmp_path: Path) -> None:
    first = two.names[0]
    inventory = write_inventory(two, tmp_path / "sys.yaml", **dict.fromkeys(two.names, "/usr/bin/python3"))
    make_wheel(tmp_path / "w", "syspkg")
    done = two.fleet("-i", str(inventory), "sync", "--wheels", str(tmp_path / "w"), "-w", first)
    assert done.returncode == 123, done.stderr
    assert "managed by the system" in done.stderr or "has no pip" in done.stderr
    assert two.sh(first, "find /usr/lib/python3* /usr/local/lib /root -name 'syspkg*'", check=False) == ""


@pytest.mark.slow
def test_who_has_what_when_it_works_on_all_but_one(two: VirtualLab, inventory: Path, tmp_path: Path) -> None:
    code = "import os\nif os.path.exists('/opt/old-driver'):\n    raise ImportError('libcuda.so.1: version too old')\n"
    make_wheel(tmp_path / "w", "pickypkg", files={"pickypkg.py": code})
    victim = two.names[1]
    two.sh(victim, "touch /opt/old-driver")
    done = two.fleet("-i", str(inventory), "sync", "--wheels", str(tmp_path / "w"))
    assert done.returncode == 1
    assert "installed pickypkg 1.0" in done.stdout and f"{victim}: has pickypkg 1.0\n" in done.stdout
    assert f"host {victim}: installed, but 'import pickypkg' fails: ImportError: libcuda.so.1" in done.stderr
    two.sh(victim, "rm /opt/old-driver")
    mended = two.fleet("-i", str(inventory), "sync", "--wheels", str(tmp_path / "w"), check=True)
    assert "nothing to do, it is there" in mended.stdout


def test_one_host_down_and_all_stay_as_they_were(two: VirtualLab, inventory: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path / "w", "downpkg")
    victim = two.names[1]
    two.stop_sshd(victim)
    try:
        done = two.fleet("-i", str(inventory), "--json", "sync", "--wheels", str(tmp_path / "w"))
    finally:
        two.start_sshd(victim)
    hosts = json.loads(done.stdout)["hosts"]
    assert done.returncode == 122 and hosts[victim]["error"]["kind"] == "refused"
    assert hosts[two.names[0]]["error"]["message"] == f"nothing was sent: {victim} could not"
    assert two.sh(two.names[0], "ls /opt/train/lib/python3*/site-packages | grep downpkg", check=False) == ""


@pytest.mark.slow
def test_large_wheels_are_broadcast_and_where_that_cannot_be_each_host_gets_a_copy(
    two: VirtualLab, inventory: Path, tmp_path: Path
) -> None:
    large_wheel(tmp_path / "w")
    done = two.fleet("-i", str(inventory), "sync", "--wheels", str(tmp_path / "w"), check=True)
    assert "installed largepkg 1.0" in done.stdout and "from this machine" not in done.stderr
    uninstall(two, inventory, "largepkg")
    try:
        for name in two.names:
            for other in set(two.names) - {name}:
                two.sh(name, f"ip route add blackhole {two.address(other)}/32")
        star = two.fleet("-i", str(inventory), "sync", "--wheels", str(tmp_path / "w"), check=True)
    finally:
        for name in two.names:
            two.sh(name, "ip route | grep blackhole | while read line; do ip route del $line; done")
    assert "installed largepkg 1.0" in star.stdout and "gets its files from this machine" in star.stderr
    uninstall(two, inventory, "largepkg")


@pytest.mark.slow
def test_where_only_ssh_takes_large_packets_wheels_travel_by_that(
    two: VirtualLab, inventory: Path, tmp_path: Path
) -> None:
    """As where the MTU of the data network is wrong: a link is made, and nothing arrives on it."""
    large_wheel(tmp_path / "w")
    victim = two.names[1]
    rules = "tcp dport 22 accept; tcp sport 22 accept; meta length > 1400 drop;"
    two.sh(victim, f"nft 'table inet narrow {{ chain in {{ type filter hook input priority 0; {rules} }}; }}'")
    try:
        done = two.fleet("-i", str(inventory), "sync", "--wheels", str(tmp_path / "w"))
    finally:
        two.sh(victim, "nft delete table inet narrow")
    assert done.returncode == 0, done.stderr
    assert "installed largepkg 1.0" in done.stdout
    uninstall(two, inventory, "largepkg")


def large_wheel(folder: Path, name: str = "largepkg", mib: int = 34) -> Path:
    """A folder with one wheel that is worth a broadcast, of random text."""
    parts = {f"{name}/{i}.txt": base64.b64encode(os.urandom(1 << 20)).decode() for i in range(mib)}
    make_wheel(folder, name, files={f"{name}/__init__.py": "", **parts})
    return folder


def uninstall(lab: VirtualLab, inventory: Path, name: str) -> None:
    lab.fleet("-i", str(inventory), "exec", "--", PYTHON, "-m", "pip", "uninstall", "-y", name, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("second", ["same head", "another head", "another set"])
def test_two_at_once(two: VirtualLab, inventory: Path, tmp_path: Path, second: str) -> None:
    folders = [large_wheel(tmp_path / "w")] * 2
    if second == "another set":
        folders[1] = large_wheel(tmp_path / "v", "otherpkg", 2)
    # another user's head has another cache
    envs = [{"XDG_CACHE_HOME": str(tmp_path / ("c2" if n and second == "another head" else "c1"))} for n in (0, 1)]
    both = [
        two.popen("-i", str(inventory), "--json", "sync", "--wheels", str(folder), env=env)
        for folder, env in zip(folders, envs, strict=True)
    ]
    said = [process.communicate(timeout=300) for process in both]
    hosts = [json.loads(out)["hosts"] for out, _err in said]
    assert [process.returncode for process in both] == [0, 0], said
    for name in two.names:  # which of two that bring the same comes first is each host's own
        states = sorted(state for one in hosts for state in one[name]["wheels"].values())
        assert states == ["installed", "installed" if second == "another set" else "there"], hosts
    for name in two.names:
        assert two.sh(name, "ls -A ~/.fleet/wheels") == "verified"
    uninstall(two, inventory, "largepkg")


def test_requirements_are_collected_for_the_hosts(two: VirtualLab, inventory: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    make_wheel(index, "basepkg", "2.0")
    make_wheel(index, "basepkg", "3.0", tag="cp27-cp27mu-linux_x86_64")
    make_wheel(index, "toppkg", "1.0", requires=["basepkg>=1"])
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("toppkg==1.0\n")
    env = {"PIP_FIND_LINKS": str(index), "PIP_NO_INDEX": "1"}
    done = two.fleet("-i", str(inventory), "--json", "sync", "--wheels", str(requirements), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {w["name"]: w["version"] for w in json.loads(done.stdout)["wheels"]} == {"toppkg": "1.0", "basepkg": "2.0"}
    # the second time no index is needed
    again = two.fleet(
        "-i",
        str(inventory),
        "sync",
        "--wheels",
        str(requirements),
        check=True,
        env={"PIP_FIND_LINKS": "/nowhere", "PIP_NO_INDEX": "1"},
    )
    assert "nothing to do, it has what was requested" in again.stdout
    requirements.write_text("nosuchpkg==1.0\n")
    missing = two.fleet("-i", str(inventory), "sync", "--wheels", str(requirements), env=env)
    assert missing.returncode == 1 and "No matching distribution found for nosuchpkg==1.0" in missing.stderr


@pytest.mark.slow
def test_ctrl_c_leaves_no_pip_behind_and_the_next_run_heals(two: VirtualLab, inventory: Path, tmp_path: Path) -> None:
    many = {f"slowpkg/m{i}.py": f"x{i} = 1\n" * 100 for i in range(1500)}
    make_wheel(tmp_path / "w", "slowpkg", files={"slowpkg/__init__.py": "", **many})
    process = two.popen("-i", str(inventory), "sync", "--wheels", str(tmp_path / "w"))
    deadline = time.monotonic() + 300
    while not two.sh(two.names[0], "ls /opt/train/lib/python3*/site-packages/slowpkg/m9.py 2>/dev/null", check=False):
        assert time.monotonic() < deadline and process.poll() is None
    process.send_signal(2)
    _out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    deadline = time.monotonic() + 300
    while two.sh(two.names[0], "pgrep -f 'pip.*slowpk[g]=='", check=False):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    two.fleet("-i", str(inventory), "sync", "--wheels", str(tmp_path / "w"), check=True)
    for name in two.names:
        assert two.sh(name, f"{PYTHON} -c 'import slowpkg.m1499 as m; print(m.x1499)'") == "1"
