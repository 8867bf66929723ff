"""Broadcasts over real sshd and shaped links: what happens to the others when one goes wrong."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.lab.processes import freeze, thaw
from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab

SIZE = 40_000_000  # 3.2 s at 100 Mbit/s
LINK = "100mbit"


@pytest.fixture(scope="module")
def fast(breakable: BreakableLab) -> VirtualLab:
    """Hosts with shaped links, whose /data has room for four of the files."""
    breakable.enrol()
    furnish(breakable, breakable.names)
    return breakable


def furnish(lab: VirtualLab, hosts: list[str]) -> None:
    lab.fleet("lab", "link", ",".join(hosts), LINK, check=True)
    for host in hosts:
        lab.sh(host, "mkdir /data && mount -t tmpfs -o size=160m none /data")


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "model.bin"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture(scope="module")
def digest(big: Path) -> str:
    return hashlib.sha256(big.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def clean(fast: VirtualLab) -> Iterator[None]:
    yield
    for name in fast.names:
        fast.sh(name, "find /data -mindepth 1 -delete; rm -rf /root/work")


def start(lab: VirtualLab, source: Path, *common: str) -> subprocess.Popen[bytes]:
    """A broadcast to /data/ that takes ten seconds; a block of 4 MiB has come to the last node."""
    process = lab.popen("-i", "lab", *common, "sync", "--limit", "4MB", "--data", f"{source}:/data/")
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if lab.sh(lab.names[-1], "find /data/.model.bin.fleet-data/stage -size +4M 2>/dev/null", check=False):
            return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"it did not get going: {process.communicate()}")


def end(process: subprocess.Popen[bytes]) -> tuple[int, dict[str, Any]]:
    out, err = process.communicate(timeout=300)
    assert out, err
    return process.returncode, json.loads(out)


def sums(lab: VirtualLab, names: list[str]) -> set[str]:
    return {lab.sh(name, "sha256sum < /data/model.bin", check=False).split()[0] for name in names}


def check_rest(lab: VirtualLab, victim: str, code: int, document: dict[str, Any], digest: str) -> dict[str, Any]:
    """All but the victim have the file; the victim's error."""
    others = [name for name in lab.names if name != victim]
    assert code != 0 and not document["hosts"][victim]["ok"]
    assert all(document["hosts"][name]["ok"] for name in others), document
    assert sums(lab, others) == {digest}
    error: dict[str, Any] = document["hosts"][victim]["error"]
    return error


def test_the_data_leaves_the_head_once(fast: VirtualLab, big: Path, digest: str) -> None:
    code, document = end(fast.popen("-i", "lab", "--json", "sync", "--data", f"{big}:/data/"))
    assert code == 0 and document["sent"] == SIZE
    assert sums(fast, fast.names) == {digest}
    done = fast.fleet("-i", "lab", "sync", "--data", f"{big}:/data/", check=True)
    assert "nothing to send" in done.stdout


def test_a_nodes_file_goes_to_the_others_past_the_head(fast: VirtualLab) -> None:
    source = fast.names[1]
    fast.sh(source, "mkdir -p /root/work && head -c 30000000 /dev/urandom > /root/work/last.pt")
    before = head_link(fast)
    done = fast.fleet("-i", "lab", "--json", "sync", "--data", "last.pt", "--from", source)
    assert done.returncode == 0, done.stderr
    assert head_link(fast) - before < 3_000_000, "the programs and the conversations"
    assert json.loads(done.stdout)["sent"] == 30_000_000, "it left its source once"
    assert len({fast.sh(name, "sha256sum /root/work/last.pt") for name in fast.names}) == 1
    assert source not in json.loads(done.stdout)["hosts"]


def head_link(lab: VirtualLab) -> int:
    """Bytes that went over the head's own link to the lab, in and out."""
    words = ["ip", "-json", "route", "get", lab.address(lab.names[0])]
    (route,) = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    counts = Path("/sys/class/net", route["dev"], "statistics")
    return sum(int((counts / f"{way}_bytes").read_text()) for way in ("rx", "tx"))


@pytest.mark.slow
def test_a_killed_node_costs_the_others_seconds(fast: VirtualLab, big: Path, digest: str) -> None:
    victim = fast.names[1]
    process = start(fast, big, "--json")
    freeze(fast.hosts[victim]["pid"])  # at once: it would be through before a busy machine comes to kill it
    fast.fleet("lab", "kill", victim, check=True)
    code, document = end(process)
    check_rest(fast, victim, code, document, digest)
    assert document["cuts"][0]["host"] == victim and document["cuts"][0]["lost_seconds"] < 100
    # as new again, with its old host key
    fast.fleet("lab", "up", check=True)
    fast.refresh()
    fast.enrolled = False
    furnish(fast.enrol(), [victim])


def test_a_frozen_node_is_left_out(fast: VirtualLab, big: Path, digest: str) -> None:
    victim = fast.names[2]
    process = start(fast, big, "--json")
    freeze(fast.hosts[victim]["pid"])
    try:
        code, document = end(process)
    finally:
        fast.fleet("lab", "heal", victim, check=True)
    error = check_rest(fast, victim, code, document, digest)
    assert "no sign of life" in error["message"]
    assert (code, error["kind"]) == (122, "lost")
    # the healed node finds its head gone, gives up its lock, and has no file under the final name
    code, document = end(fast.popen("-i", "lab", "--json", "sync", "--data", f"{big}:/data/"))
    # where it was frozen late, all of it had come, and only its name was missing
    assert code == 0 and document["hosts"][victim]["bytes"] < SIZE
    assert sums(fast, fast.names) == {digest}


def test_a_full_disk_is_said_by_the_node_itself(fast: VirtualLab, big: Path, digest: str) -> None:
    victim = fast.names[1]
    process = start(fast, big, "--json")
    fast.sh(victim, "dd if=/dev/zero of=/data/.fill bs=1M 2>/dev/null", check=False)
    code, document = end(process)
    error = check_rest(fast, victim, code, document, digest)
    assert "No space left" in error["message"] and "free some space" in error["hint"]
    assert fast.sh(victim, "ls /data") == ""


@pytest.mark.slow
def test_a_link_at_a_tenth_is_cut_out(fast: VirtualLab, big: Path, digest: str) -> None:
    victim = fast.names[1]
    fast.fleet("lab", "link", victim, "10mbit", check=True)
    try:
        code, document = end(fast.popen("-i", "lab", "--json", "sync", "--data", f"{big}:/data/"))
    finally:
        fast.fleet("lab", "link", victim, LINK, check=True)
    error = check_rest(fast, victim, code, document, digest)
    assert error["kind"] == "slow" and "it crawls" in error["message"]


def test_no_room_on_one_host_is_said_before_anything_is_sent(fast: VirtualLab, big: Path) -> None:
    victim = fast.names[3]
    fast.sh(victim, "head -c 125M /dev/zero > /data/.fill")
    code, document = end(fast.popen("-i", "lab", "--json", "sync", "--data", f"{big}:/data/"))
    assert code == 1 and document["sent"] == 0
    assert f"{SIZE / 2**20:.1f} MiB are to be written" in document["hosts"][victim]["error"]["message"]
    assert victim in document["hosts"][fast.names[0]]["error"]["message"]


def test_the_head_killed_leaves_parts_and_the_next_run_goes_on(fast: VirtualLab, big: Path, digest: str) -> None:
    process = start(fast, big, "--json")
    process.kill()
    process.communicate(timeout=300)
    for name in fast.names:
        assert fast.sh(name, "ls /data") == ""
    code, document = end(fast.popen("-i", "lab", "--json", "sync", "--data", f"{big}:/data/"))
    assert code == 0 and document["sent"] < SIZE
    assert sums(fast, fast.names) == {digest}


@pytest.mark.slow
def test_no_secret_is_seen_in_a_command_line_or_environment(fast: VirtualLab, big: Path) -> None:
    process = start(fast, big, "--json")
    seen = "".join(
        fast.sh(
            name,
            "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; ls -R /dev/shm /data",
            check=False,
        )
        for name in fast.names
    )
    assert end(process)[0] == 0
    assert "FLEET1" not in seen and "PRIVATE KEY" not in seen and "pem" not in seen and '"token"' not in seen


@pytest.mark.slow
def test_a_wall_between_two_nodes_is_gone_around(fast: VirtualLab, big: Path, digest: str) -> None:
    first, second = fast.names[:2]
    fast.sh(first, f"ip route add prohibit {fast.address(second)}")
    try:
        code, document = end(fast.popen("-i", "lab", "--json", "sync", "--data", f"{big}:/data/"))
    finally:
        fast.sh(first, f"ip route del prohibit {fast.address(second)}")
    assert code == 0 and document["sent"] == SIZE
    assert sums(fast, fast.names) == {digest}


@pytest.mark.slow
def test_a_first_node_cut_off_from_the_others_costs_nobody_else_its_data(
    fast: VirtualLab, big: Path, digest: str
) -> None:
    first, *others = fast.names
    for name in others:
        fast.sh(first, f"ip route add unreachable {fast.address(name)}")
    try:
        code, document = end(fast.popen("-i", "lab", "--json", "sync", "--data", f"{big}:/data/"))
    finally:
        for name in others:
            fast.sh(first, f"ip route del unreachable {fast.address(name)}")
    # what it hears of the others it cannot know: this machine sends to it
    assert code == 0 and sums(fast, fast.names) == {digest}


@pytest.mark.slow
def test_a_node_that_no_other_reaches_gets_its_files_from_the_head(fast: VirtualLab, big: Path, digest: str) -> None:
    victim, others = fast.names[1], [name for name in fast.names if name != fast.names[1]]
    for name in others:
        fast.sh(name, f"ip route add prohibit {fast.address(victim)}")
    try:
        code, document = end(fast.popen("-i", "lab", "--json", "sync", "--data", f"{big}:/data/"))
        assert code == 0 and SIZE < document["sent"] < 3 * SIZE
        assert sums(fast, fast.names) == {digest}
    finally:
        for name in others:
            fast.sh(name, f"ip route del prohibit {fast.address(victim)}")


@pytest.mark.slow
def test_behind_a_bastion_the_data_still_leaves_the_head_once(
    fast: VirtualLab, big: Path, digest: str, tmp_path: Path
) -> None:
    bastion, *inner = fast.names
    inventory = tmp_path / "fleet.yaml"
    inventory.write_text(
        "defaults: {user: root}\nhosts:\n"
        + "".join(
            f"  {name}: {{address: {fast.address(name)}, proxy_jump: root@{fast.address(bastion)}}}\n" for name in inner
        )
    )
    said = fast.fleet("-i", "lab", "-w", bastion, "exec", "--shell", "echo $SSH_CONNECTION", check=True).stdout
    head = re.findall(r"198\.18\.[\d.]+", said)[0]
    for name in inner:
        fast.sh(name, f"ip route add prohibit {head}")
    try:
        code, document = end(fast.popen("-i", str(inventory), "--json", "sync", "--data", f"{big}:/data/"))
    finally:
        for name in inner:
            fast.sh(name, f"ip route del prohibit {head}")
    assert code == 0 and document["sent"] == SIZE, document
    assert sums(fast, inner) == {digest}


@pytest.mark.slow
def test_a_node_that_wakes_up_again_gets_the_rest_at_the_end_of_the_chain(
    fast: VirtualLab, big: Path, digest: str
) -> None:
    sleeper = fast.names[1]
    process = start(fast, big)
    freeze(fast.hosts[sleeper]["pid"])
    assert process.stderr
    err = b""
    while b"the others go on without it" not in err:  # where it sleeps on, it is given up
        err += (more := os.read(process.stderr.fileno(), 1 << 16))
        assert more, err
    thaw(fast.hosts[sleeper]["pid"])
    out, rest = process.communicate(timeout=300)
    err += rest
    assert process.returncode == 0, err
    assert b"the others go on without it" in err and b"sends again" in err
    assert b"1 file received" in out
    assert sums(fast, fast.names) == {digest}


@pytest.mark.slow
def test_a_first_node_that_crawls_holds_up_nobody(fast: VirtualLab, big: Path, digest: str) -> None:
    first = fast.names[0]
    fast.fleet("lab", "link", first, "8mbit", check=True)
    try:
        code, document = end(fast.popen("-i", "lab", "--json", "sync", "--data", f"{big}:/data/"))
    finally:
        fast.fleet("lab", "link", first, LINK, check=True)
    error = check_rest(fast, first, code, document, digest)
    assert error["kind"] == "slow" and "it crawls" in error["message"]
