"""The lab itself: real namespaces, real sshd, real cables; broken on purpose, and nothing left behind."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.test_launch import until
from tests.lab.virtual_lab import VirtualLab, head_env

MARK = "FLEET_LAB_STATE="


@pytest.fixture(scope="module")
def own(breakable: BreakableLab) -> VirtualLab:
    """Hosts that these tests may break; each test heals them, or brings them up again."""
    return breakable


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[VirtualLab]:
    """A head whose lab is not up yet; its `down` is for certain."""
    home = tmp_path / "home"
    home.mkdir()
    instance = f"s{os.getpid()}"
    folder = home / ".fleet/lab" / instance
    files = (folder / "inventory.yaml", folder / "password", folder)
    lab = VirtualLab(instance, home, head_env(home, instance), {}, *files)
    yield lab
    lab.fleet("lab", "down", check=True)


def ssh(lab: VirtualLab, host: str, line: str, timeout: int = 300) -> subprocess.CompletedProcess[str]:
    """OpenSSH's client with the lab's password, as a witness that is not fleet."""
    if shutil.which("sshpass") is None:
        pytest.fail("sshpass is needed: apt install sshpass")
    options = ["StrictHostKeyChecking=accept-new", f"UserKnownHostsFile={lab.home}/known_hosts", "ConnectTimeout=60"]
    argv = ["sshpass", "-f", str(lab.password_file), "ssh", *(f"-o{o}" for o in [*options, "PubkeyAuthentication=no"])]
    argv += [f"root@{host}", line]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False)


def processes_of(lab: VirtualLab) -> list[int]:
    """The lab's processes, found another way than fleet's own: by namespace and by mark, zombies too."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}{lab.state_dir}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def namespaces(pids: list[int]) -> set[str]:
    kinds = ("net", "mnt", "pid", "uts", "ipc")
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in pids for kind in kinds if os.path.exists(f"/proc/{pid}")}


def ticks() -> int:
    """Now, as /proc/PID/stat counts a process's start: clock ticks since boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def all_namespaces(before: int) -> set[str]:
    """Those of processes that began before `before`: the kernel gives a freed number to the next namespace made."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or int((entry / "stat").read_text().rpartition(")")[2].split()[19]) > before:
                continue
        except OSError:
            continue
        for kind in ("net", "mnt", "pid", "uts", "ipc"):
            try:
                found.add(os.readlink(entry / "ns" / kind))
            except OSError:
                continue
    return found


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def assert_nothing_left(lab: VirtualLab) -> None:
    assert processes_of(lab) == []
    assert str(lab.home) not in Path("/etc/hosts").read_text()
    assert str(lab.home) not in Path("/proc/self/mountinfo").read_text()
    left = sorted(p.name for p in lab.state_dir.iterdir()) if lab.state_dir.exists() else []
    assert set(left) <= {"host_keys", "lock", "root", "state.json"}
    assert not any((lab.state_dir / "root").iterdir())


def test_up_says_what_there_is(own: VirtualLab) -> None:
    status = own.fleet("lab", "status", "--json", check=True)
    said = json.loads(status.stdout)
    assert list(said) == ["state_dir", "inventory", "password_file", "hosts"]
    assert list(said["hosts"]) == [f"{own.instance}0{number}" for number in (1, 2, 3, 4)]
    for host in said["hosts"].values():
        assert set(host) == {"address", "pid", "up"}
        assert host["up"] is True
        assert socket.inet_aton(host["address"])[:2] == bytes([198, 18])
    assert stat.S_IMODE(own.password_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(own.state_dir.stat().st_mode) == 0o700


def test_password_names_and_own_worlds(own: VirtualLab) -> None:
    one, two, *_ = own.names
    for host in (one, two):
        done = ssh(own, host, f"hostname; getent hosts {one} {two} head; readlink /proc/self/ns/net")
        assert done.returncode == 0, done.stderr
        name, first, second, head, net = done.stdout.splitlines()
        assert name == host
        assert first.split()[0] == own.address(one)
        assert second.split()[0] == own.address(two)
        assert head.split()[0].startswith("198.18.")
        assert net != os.readlink("/proc/self/ns/net")
    assert socket.gethostbyname(two) == own.address(two)  # the head knows them by name as well
    wrong = own.home / "wrong"
    wrong.write_text("not the password\n")
    refused = ssh(replace(own, password_file=wrong), one, "true")
    assert refused.returncode != 0


def test_addresses_lead_back_to_names(own: VirtualLab) -> None:
    """Also IPv4 addresses as IPv6 sockets see them: torch warns of each peer that has no name."""
    one, two, *_ = own.names
    head = ipaddress.ip_interface(f"{own.address(one)}/22").network[1]
    addresses = [own.address(one), own.address(two), str(head), "127.0.0.1"]
    program = "import socket, sys\nfor a in sys.argv[1:]: print(socket.getnameinfo((a, 9), socket.NI_NAMEREQD)[0])"

    def names(*known: str) -> list[str]:
        return own.inside(host, "python3", "-c", program, *known).stdout.decode().split()

    for host in (one, two):
        assert names(*addresses) == [one, two, socket.gethostname(), "localhost"]
        assert names(*(f"::ffff:{a}" for a in addresses)) == [f"{name}.lab" for name in names(*addresses)]
        assert own.sh(host, f"getent ahosts {two} | cut -d' ' -f1 | sort -u") == own.address(two)  # one, as before


def test_a_session_is_a_clean_one(own: VirtualLab) -> None:
    """No signal is blocked or ignored, and nothing of the lab's own environment shows."""
    done = ssh(own, own.names[0], "grep -E '^Sig(Blk|Ign)' /proc/self/status; env; cat /proc/1/comm")
    ordinary = sum(1 << number - 1 for number in signal.valid_signals())  # not the two that libc keeps to itself
    values = [int(line.split()[1], 16) & ordinary for line in done.stdout.splitlines() if line.startswith("Sig")]
    assert values == [0, 0]
    assert "FLEET" not in done.stdout


def test_hosts_see_no_secret_and_harm_nothing(own: VirtualLab, tmp_path: Path) -> None:
    host = own.names[0]
    (own.home / ".ssh").mkdir(exist_ok=True)
    (own.home / ".ssh" / "probe").write_text("secret")
    assert own.sh(host, f"cat {own.password_file} {own.home}/.ssh/probe /root/.ssh/* 2>/dev/null", check=False) == ""
    canary = Path("/var/tmp") / f"fleet-lab-{os.getpid()}"
    own.sh(host, f"echo x > {canary}; echo x > /dev/shm/{canary.name}; echo x > /etc/{canary.name}")
    for folder in ("/var/tmp", "/dev/shm", "/etc"):
        assert not Path(folder, canary.name).exists()
    assert own.sh(host, "ls /dev | grep -E '^(sd|vd|nvme|loop|mem|kmsg)' || true") == ""
    keys = {h: own.sh(h, "cat /etc/ssh/ssh_host_*.pub") for h in own.names}
    assert len(set(keys.values())) == len(own.names)


def test_the_password_is_in_its_file_alone(own: VirtualLab) -> None:
    secret = own.password.encode()
    for path in own.state_dir.rglob("*"):
        assert path == own.password_file or not path.is_file() or secret not in path.read_bytes(), path
    for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
        for name in ("cmdline", "environ"):
            try:
                assert secret not in Path("/proc", pid, name).read_bytes(), f"/proc/{pid}/{name}"
            except OSError:
                continue


def test_up_again_changes_nothing_and_adds_what_is_asked(scratch: VirtualLab) -> None:
    own = scratch
    own.hosts = before = json.loads(own.fleet("lab", "up", "2", "--json", check=True).stdout)["hosts"]
    first = own.names[0]
    own.sh(first, "cp /etc/hosts /etc/mine; echo '10.9.9.9 mine' >> /etc/mine; ln -sf /etc/mine /etc/hosts")
    again = json.loads(own.fleet("lab", "up", "2", "--json", check=True).stdout)
    assert again["hosts"] == before
    assert json.loads(own.fleet("lab", "up", "1", "--json", check=True).stdout)["hosts"] == before  # never fewer
    more = json.loads(own.fleet("lab", "up", "3", "--json", check=True).stdout)["hosts"]
    assert {name: more[name] for name in before} == before
    third = f"{own.instance}03"
    own.hosts = more
    for host in own.names:
        assert own.sh(host, f"getent hosts {third}").split()[0] == own.address(third)
        assert own.sh(host, f"getent hosts ::ffff:{own.address(third)}").split()[1] == f"{third}.lab"
    assert own.sh(first, "getent hosts mine").split()[0] == "10.9.9.9"  # a host's own lines, and links, stay
    assert not Path("/etc/mine").exists()  # and lead nowhere outside of it


def test_cut_is_silent_and_heals(own: VirtualLab) -> None:
    """A connection through a cut is neither reset nor closed, and goes on afterwards."""
    host = own.names[0]
    talk = subprocess.Popen(
        [
            "nsenter",
            "-t",
            str(own.hosts[host]["pid"]),
            "-a",
            "python3",
            "-c",
            "import socket; s = socket.create_server(('', 7007)); c, _ = s.accept(); c.sendall(c.recv(9))",
        ]
    )
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                peer = socket.create_connection((own.address(host), 7007), timeout=300)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        with peer:
            own.fleet("lab", "cut", host, check=True)
            assert "cut" in own.fleet("lab", "status").stdout
            peer.sendall(b"over")
            peer.settimeout(1.5)
            with pytest.raises(TimeoutError):
                peer.recv(9)
            own.fleet("lab", "heal", host, check=True)
            peer.settimeout(300)
            assert peer.recv(9) == b"over"
    finally:
        talk.kill()
        talk.wait()


def test_frozen_accepts_and_says_nothing(own: VirtualLab) -> None:
    host, off = own.names[:2]
    own.fleet("lab", "freeze", host, check=True)
    assert "frozen" in own.fleet("lab", "status").stdout
    with socket.create_connection((own.address(host), 22), timeout=300) as peer:
        peer.settimeout(1)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        own.fleet("lab", "kill", off, check=True)
        healed = own.fleet("lab", "heal", off, host)  # the one that cannot be keeps the other from nothing
        own.fleet("lab", "up", "2", check=True)
        own.refresh()
        assert healed.returncode == 1 and f"host {off}: it is off" in healed.stderr, healed.stderr
        peer.settimeout(300)
        assert peer.recv(4) == b"SSH-"


def test_kill_says_no_goodbye_and_up_brings_the_same_host_back(own: VirtualLab) -> None:
    host, other = own.names[:2]
    key = own.sh(host, "cat /etc/ssh/ssh_host_ed25519_key.pub")
    own.sh(host, "echo old > /root/marker")
    with socket.create_connection((own.address(host), 22), timeout=300) as peer:
        assert peer.recv(4) == b"SSH-"
        own.fleet("lab", "kill", host, check=True)
        peer.settimeout(1)
        with pytest.raises(TimeoutError):
            while peer.recv(4096):
                pass
    off = json.loads(own.fleet("lab", "status", "--json").stdout)["hosts"][host]
    assert off == {"address": own.address(host), "pid": None, "up": False}
    refused = own.fleet("lab", "cut", host)
    assert refused.returncode == 1
    assert f"host {host}: it is off" in refused.stderr
    assert "fleet lab up" in refused.stderr
    unharmed = own.hosts[other]
    own.fleet("lab", "up", check=True)
    own.refresh()
    assert own.hosts[other] == unharmed
    assert own.sh(host, "cat /etc/ssh/ssh_host_ed25519_key.pub") == key
    assert own.sh(host, "ls /root/marker", check=False) == ""
    assert ssh(own, host, "hostname").stdout.strip() == host  # at once: peers remember its MAC


def test_a_host_outlives_its_sshd(own: VirtualLab) -> None:
    host = own.names[0]
    pid = own.hosts[host]["pid"]
    own.stop_sshd(host)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((own.address(host), 22), timeout=300)
    own.start_sshd(host)
    assert ssh(own, host, "hostname").stdout.strip() == host
    own.sh(host, "(sleep 0.1 &) ; sleep 0.4")
    until(lambda: own.sh(host, "cat /proc/[0-9]*/stat | awk '$3 == \"Z\"' | wc -l") == "0")  # orphans are collected
    own.refresh()
    assert own.hosts[host] == {"address": own.address(host), "pid": pid, "up": True}
    own.swap_host_key(host)
    assert "IDENTIFICATION HAS CHANGED" in ssh(own, host, "true").stderr


def test_links_have_their_rate(own: VirtualLab) -> None:
    """10 Mbit/s both ways on one host, as measured by how long 1.25 MB take; and none again."""
    host = own.names[1]
    own.fleet("lab", "link", host, "10mbit", check=True)
    server = (
        "import socket; s = socket.create_server(('', 7008)); c, _ = s.accept()\n"
        "while c.recv(65536): pass\nc.sendall(b'x' * 1250000); c.close()"
    )
    argv = ["nsenter", "-t", str(own.hosts[host]["pid"]), "-a", "python3", "-c", server]
    with subprocess.Popen(argv) as node:
        try:
            own.sh(host, "until grep -q :1B60 /proc/net/tcp; do sleep 0.05; done")
            with socket.create_connection((own.address(host), 7008), timeout=300) as peer:
                times = [time.monotonic()]
                peer.sendall(b"x" * 1_250_000)
                peer.shutdown(socket.SHUT_WR)
                received = 0
                while chunk := peer.recv(65536):
                    received += len(chunk)
                times.append(time.monotonic())
        finally:
            node.kill()
    assert received == 1_250_000
    # together: who is held up hears the first byte late
    assert times[1] - times[0] > 1.5, "the links to and from the host are not limited"
    done = json.loads(own.fleet("lab", "link", host, "none", "--json", check=True).stdout)
    nothing = {"exit_status": None, "stdout": "", "stderr": "", "error": None}
    assert done == {"verb": "lab", "ok": True, "exit_code": 0, "hosts": {host: {"ok": True, **nothing}}}
    assert own.fleet("lab", "status", check=True).stdout.split("\n")[0].split() == ["host", "address", "pid", "state"]
    assert "tbf" not in own.sh(host, "tc qdisc show dev eth0")


def test_errors_say_what_to_do(scratch: VirtualLab) -> None:
    down = scratch.fleet("lab", "cut", "lab01")
    assert down.returncode == 1
    assert down.stderr.splitlines() == [f"error: the lab '{scratch.instance}' is not up", "  hint: fleet lab up 4"]
    user = "import os, sys; os.geteuid = lambda: 1000; from fleet.cli.main import main; sys.argv[0] = 'fleet'; main()"
    argv = [sys.executable, "-c", user, "lab", "up"]
    refused = subprocess.run(argv, env=scratch.env, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr.splitlines() == [
        "error: the lab needs root: it makes namespaces and mounts",
        "  hint: run it as root, or with sudo -H",
    ]


def test_dry_run_does_nothing(scratch: VirtualLab, own: VirtualLab) -> None:
    assert "would bring up 3 hosts" in scratch.fleet("lab", "up", "3", "--dry-run", check=True).stdout
    assert processes_of(scratch) == []
    said = own.fleet("lab", "kill", *own.names, "--dry-run", check=True).stdout
    assert "would be off" in said
    own.fleet("lab", "down", "--dry-run", check=True)
    before = own.hosts
    own.refresh()
    assert own.hosts == before


def test_down_leaves_nothing_and_twice_is_fine(scratch: VirtualLab) -> None:
    up = json.loads(scratch.fleet("lab", "up", "3", "--json", check=True).stdout)
    scratch.hosts = up["hosts"]
    # other labs may come and go meanwhile
    cable = "fl" + hashlib.sha256(os.fsencode(scratch.state_dir)).hexdigest()[:8]
    assert any(name.startswith(cable) for name in interfaces())
    outside = subprocess.Popen(  # a process that someone left in a host, in a session of its own
        ["nsenter", "-t", str(scratch.hosts[scratch.names[0]]["pid"]), "-a", "setsid", "sleep", "1000"]
    )
    scratch.fleet("lab", "freeze", scratch.names[1], check=True)
    scratch.fleet("lab", "cut", scratch.names[2], check=True)
    worlds = namespaces(processes_of(scratch)) - namespaces([os.getpid()])
    assert len(worlds) >= 16
    before_down = ticks()
    scratch.fleet("lab", "down", check=True)
    outside.wait(300)
    assert_nothing_left(scratch)
    assert not worlds & all_namespaces(before_down)
    assert not any(name.startswith(cable) for name in interfaces())
    scratch.fleet("lab", "down", check=True)
    assert "not up" in scratch.fleet("lab", "status").stdout


def test_labs_are_built_side_by_side(scratch: VirtualLab) -> None:
    """On a busy machine hosts take a minute to come up: no other lab has to wait for that."""
    beside = (
        "import sys; from fleet.lab import names, processes; go = processes.Launch.go\n"
        "def beside(launch):\n with names.machine_lock(): go(launch)\n"
        "processes.Launch.go = beside; sys.argv[0] = 'fleet'; from fleet.cli.main import main; main()"
    )
    argv = [sys.executable, "-c", beside, "lab", "up", "1"]
    done = subprocess.run(argv, env=scratch.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_earlier_labs_known_hosts_stays_true(scratch: VirtualLab) -> None:
    ups = []
    for _ in range(2):
        ups.append(json.loads(scratch.fleet("lab", "up", "1", "--json", check=True).stdout)["hosts"])
        host = next(iter(ups[-1]))
        assert ssh(scratch, host, "hostname").stdout.strip() == host
        scratch.fleet("lab", "down", check=True)
    assert [h["address"] for h in ups[0].values()] == [h["address"] for h in ups[1].values()]


def test_a_file_that_a_killed_command_was_writing_is_taken_away(scratch: VirtualLab) -> None:
    scratch.fleet("lab", "up", "1", check=True)
    (scratch.state_dir / "state.json.new").write_text("half a fi")
    scratch.fleet("lab", "down", check=True)
    assert_nothing_left(scratch)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 3))])
def test_up_killed_at_any_moment(scratch: VirtualLab, seed: int) -> None:
    """kill -9 of `up`: `down` leaves nothing, and so does another `up` that takes over."""
    moment = random.Random(seed).uniform(0.1, 0.7)
    up = scratch.popen("lab", "up", "8")
    time.sleep(moment)
    up.kill()
    up.communicate(timeout=300)
    if seed % 2:
        again = scratch.fleet("lab", "up", "3", "--json", check=True)
        hosts = json.loads(again.stdout)["hosts"]
        assert len(hosts) >= 3
        for host in hosts:
            assert ssh(scratch, host, "hostname").stdout.strip() == host
    scratch.fleet("lab", "down", check=True)
    assert_nothing_left(scratch)


def test_ctrl_c_clears_up(scratch: VirtualLab) -> None:
    up = scratch.popen("lab", "up", "200")
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        up.send_signal(signal.SIGSTOP)  # looking takes longer than bringing up, where there are many processes
        if len(processes_of(scratch)) >= 3:
            break
        up.send_signal(signal.SIGCONT)
        time.sleep(0.05)
    up.send_signal(signal.SIGINT)
    up.send_signal(signal.SIGCONT)
    _, err = up.communicate(timeout=300)
    assert up.returncode == 130, err
    assert b"Traceback" not in err
    assert_nothing_left(scratch)


@pytest.mark.parametrize(
    "victim", ["all", *(pytest.param(one, marks=pytest.mark.slow) for one in ("switch", "host", "sshd"))]
)
def test_any_process_killed(scratch: VirtualLab, victim: str) -> None:
    scratch.hosts = json.loads(scratch.fleet("lab", "up", "2", "--json", check=True).stdout)["hosts"]
    first = [int(h["pid"]) for h in scratch.hosts.values()]
    switch = [p for p in processes_of(scratch) if os.readlink(f"/proc/{p}/ns/pid") == os.readlink("/proc/self/ns/pid")]
    assert len(switch) == 1
    if victim == "sshd":
        scratch.sh(scratch.names[0], "kill -9 $(cat /run/sshd.pid)")
    else:
        for pid in {"switch": switch, "host": first[:1], "all": switch + first}[victim]:
            os.kill(pid, signal.SIGKILL)
    assert scratch.fleet("lab", "status").returncode == 0
    if victim != "sshd":
        again = json.loads(scratch.fleet("lab", "up", "2", "--json", check=True).stdout)["hosts"]
        assert all(host["up"] for host in again.values())
        for host in again:
            assert ssh(scratch, host, "hostname").stdout.strip() == host
    scratch.fleet("lab", "down", check=True)
    assert_nothing_left(scratch)


def test_a_damaged_state_file_is_cleared_by_down(scratch: VirtualLab) -> None:
    scratch.fleet("lab", "up", "1", check=True)
    (scratch.state_dir / "state.json").write_text("{")
    refused = scratch.fleet("lab", "up", "1")
    assert refused.returncode == 1
    assert "fleet lab down" in refused.stderr
    scratch.fleet("lab", "down", check=True)
    assert_nothing_left(scratch)


@pytest.mark.slow
def test_sixty_four_hosts(scratch: VirtualLab) -> None:
    hosts = json.loads(scratch.fleet("lab", "up", "64", "--json", check=True).stdout)["hosts"]
    assert len({host["address"] for host in hosts.values()}) == 64
    for host in hosts.values():
        with socket.create_connection((host["address"], 22), timeout=300) as peer:
            assert peer.recv(4) == b"SSH-"
    last = list(hosts)[-1]
    assert ssh(scratch, last, f"getent hosts {next(iter(hosts))}").returncode == 0
