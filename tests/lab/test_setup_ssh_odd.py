"""setup-ssh where things are not as usual: files others own, nodes without python, gateways, ports, users; and undo."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.lab.setup_ssh_tools import Head, fingerprint, logged
from tests.lab.test_launch import until
from tests.lab.virtual_lab import FLEET, VirtualLab

pytestmark = pytest.mark.slow

THEIRS = (
    b'# keys of the team\n\ncommand="echo hi",no-pty ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQCxyz a b\n'
    b"\xff\xfe not utf-8\nssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPATzJKM0OFNKaZLZ3SvWoHxagl5ZZLLS1lM8nzZW last"
)


def write(lab: VirtualLab, host: str, name: str, data: bytes, mode: str = "600") -> None:
    lab.inside(
        host,
        "sh",
        "-c",
        'mkdir -p -m 700 /root/.ssh && cat > "/root/.ssh/$1" && chmod "$2" "/root/.ssh/$1"',
        "sh",
        name,
        mode,
        stdin=data,
    )


def read(lab: VirtualLab, host: str, name: str) -> bytes:
    return lab.inside(host, "cat", f"/root/.ssh/{name}").stdout


# -- what others wrote, and undo --------------------------------------------------------------------------
def test_what_was_there_stays_and_undo_gives_it_back(head: Head) -> None:
    head = head.first(2)
    one, two = head.lab.names
    config = b"User root\nHost " + two.encode() + b"\n    Port 2299\n"  # no newline problem, a wrong port for a host
    write(head.lab, one, "authorized_keys", THEIRS, "644")
    write(head.lab, one, "config", config)
    write(head.lab, one, "known_hosts", b"# nothing yet")
    head.ssh.mkdir(mode=0o700)
    (head.ssh / "config").write_bytes(config)
    (head.ssh / "known_hosts").write_bytes(b"old.example ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPAT")
    mine = {path.name: path.read_bytes() for path in head.ssh.iterdir()}

    head.write_inventory({name: {} for name in head.lab.names}, port=22)
    assert head.report("--tofu")["pairs"]["verified"] == 4
    data = read(head.lab, one, "authorized_keys")
    assert data.startswith(THEIRS + b"\n") and data.count(b"\n") == THEIRS.count(b"\n") + 1 + 3
    assert read(head.lab, one, "config").endswith(b"\n" + config)
    assert head.lab.sh(one, "stat -c %a /root/.ssh/authorized_keys") == "644"

    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0, done.stderr
    assert read(head.lab, one, "authorized_keys") == THEIRS
    assert read(head.lab, one, "config") == config
    assert read(head.lab, one, "known_hosts") == b"# nothing yet"
    assert head.lab.sh(one, "ls /root/.ssh").split() == ["authorized_keys", "config", "known_hosts"]
    assert head.lab.sh(two, "ls -A /root/.ssh || true") == ""
    # the key that fleet made may let its user in where old.example is
    assert "id_ed25519 stays, though fleet made it" in done.stderr and f"rm {head.ssh}/id_ed25519" in done.stderr
    assert {path.name: path.read_bytes() for path in head.ssh.iterdir() if "id_" not in path.name} == mine
    assert len(list(head.ssh.iterdir())) == len(mine) + 2
    assert not list((head.home / ".fleet/setup-ssh").iterdir())
    again = head.fleet("setup-ssh", "--undo")
    assert again.returncode == 1 and "nothing to undo" in again.stderr


def test_keys_that_were_there_are_used_and_survive_undo(head: Head) -> None:
    head = head.first(2)
    one = head.lab.names[0]
    head.lab.sh(one, "mkdir -m 700 /root/.ssh; ssh-keygen -q -t ed25519 -N '' -C mine -f /root/.ssh/id_ed25519")
    before = read(head.lab, one, "id_ed25519")
    assert head.report("--tofu")["hosts"][one]["changed"] == ["authorized_keys", "known_hosts", "config"]
    assert head.fleet("setup-ssh", "--undo").returncode == 0
    assert head.lab.sh(one, "ls /root/.ssh").split() == ["id_ed25519", "id_ed25519.pub"]
    assert read(head.lab, one, "id_ed25519") == before


def test_undo_goes_on_without_a_host_that_is_gone_and_finishes_later(head: Head) -> None:
    head = head.first(2)
    one, two = head.lab.names
    assert head.setup("--tofu").returncode == 0
    head.lab.stop_sshd(two)
    try:
        done = head.fleet("setup-ssh", "--undo", "--json")
    finally:
        head.lab.start_sshd(two)
    assert done.returncode == 122
    report = json.loads(done.stdout)
    assert report["hosts"][two]["error"]["kind"] == "refused" and two in done.stderr
    assert head.lab.sh(one, "ls -A /root/.ssh || true") == ""
    # what is left can be reached, what was undone is nothing to plain ssh any more
    block = (head.ssh / "config").read_text()
    assert f"Host {two}\n" in block and one not in block
    assert head.plain_ssh(two, "true").returncode == 0
    before = logged(head.lab, one, "Connection from")
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0, done.stderr
    assert head.lab.sh(two, "ls -A /root/.ssh || true") == "" and not list(head.ssh.glob("*"))
    assert logged(head.lab, one, "Connection from") == before
    assert "nothing to undo" in head.fleet("setup-ssh", "--undo").stderr


@pytest.mark.slow
def test_undo_of_some_keeps_what_the_others_need(head: Head) -> None:
    head = head.first(2)
    one, two = head.lab.names
    assert head.setup("--tofu").returncode == 0
    done = head.fleet("-w", one, "setup-ssh", "--undo")
    assert done.returncode == 0, done.stderr
    assert head.lab.sh(one, "ls -A /root/.ssh || true") == ""
    assert head.plain_ssh(two, "true").returncode == 0
    assert head.fleet("setup-ssh", "--undo").returncode == 0
    assert not list(head.ssh.glob("*"))


# -- hosts of all kinds -----------------------------------------------------------------------------------
def test_a_node_without_python(head: Head) -> None:
    head = head.first(2)
    one = head.lab.names[0]
    head.lab.sh(one, "for p in /usr/bin/python3*; do [ -f $p ] && mount --bind /dev/null $p; done; true")
    try:
        assert head.lab.inside(one, "/usr/bin/python3", "-V", check=False).returncode == 126
        assert head.report("--tofu")["pairs"]["verified"] == 4
    finally:
        head.lab.sh(one, "for p in /usr/bin/python3*; do umount $p 2>/dev/null; done; true")


def test_one_host_down_does_not_stop_the_others(head: Head) -> None:
    head = head.first(2)
    one, two = head.lab.names
    head.lab.stop_sshd(two)
    try:
        report = head.report("--tofu", code=122)
    finally:
        head.lab.start_sshd(two)
    assert report["hosts"][two]["error"]["kind"] == "refused"
    assert report["hosts"][one]["ok"] and report["pairs"]["verified"] == 1
    assert head.report("--tofu")["pairs"]["verified"] == 4
    assert head.report()["changed"] is False


@pytest.fixture
def behind(head: Head) -> Iterator[Head]:
    """Hosts 2 and 3 listen on 2222, let in alice only, and are reached through host 1."""
    one, *others = head.lab.names
    for host in others:
        head.lab.sh(host, "id alice >/dev/null 2>&1 || useradd -m -s /bin/bash alice; rm -rf /home/alice/.ssh")
        head.lab.inside(host, "chpasswd", stdin=f"alice:{head.lab.password}\n".encode())
        head.lab.stop_sshd(host)
        head.lab.sh(
            host,
            "/usr/sbin/sshd -p 2222 -o AllowUsers=alice -E /var/log/sshd.log; "
            "while [ ! -e /run/sshd.pid ]; do sleep 0.02; done",
        )
    fields = {"user": "alice", "port": 2222, "proxy_jump": one}
    head.write_inventory({others[0]: fields, others[1]: fields, one: {}})
    yield head
    for host in others:
        head.lab.stop_sshd(host)
        head.lab.start_sshd(host)


def test_through_a_gateway_on_another_port_as_another_user(behind: Head) -> None:
    one, two, three = behind.lab.names
    assert behind.report("--tofu")["pairs"] == {"verified": 9, "from_head": 3, "failed": []}
    bastion = behind.lab.address(one)
    assert logged(behind.lab, two, f"Accepted password for alice from {bastion}") == 1
    assert f"\n[{behind.lab.address(two)}]:2222 ssh-ed25519" in (behind.ssh / "known_hosts").read_text()
    assert behind.plain_ssh(two, "whoami").stdout == "alice\n"
    assert logged(behind.lab, two, "Failed") == 0
    # from node to node it goes directly
    behind.lab.inside(two, "su", "-", "alice", "-c", f"ssh -o BatchMode=yes {three} true")
    before = behind.everything()
    assert behind.report()["changed"] is False
    assert behind.everything() == before
    only = behind.report("-w", two)
    assert only["pairs"]["verified"] == 1 and one in only["hosts"]
    assert behind.fleet("setup-ssh", "--undo").returncode == 0
    assert behind.lab.sh(two, "ls -A /home/alice/.ssh || true") == ""


def test_pairs_that_fail_are_named_with_their_reason(head: Head) -> None:
    one, two, three = head.lab.names
    # an address for training traffic that leads nowhere: the head gets in, the nodes do not
    head.write_inventory({one: {}, two: {}, three: {"data_address": "no-such-name.invalid"}})
    report = head.report("--tofu", code=1)
    assert report["pairs"]["verified"] == 6 and report["pairs"]["from_head"] == 3
    assert {(p["from"], p["to"]) for p in report["pairs"]["failed"]} == {(n, three) for n in head.lab.names}
    error = report["hosts"][one]["error"]
    assert error["kind"] == "pairs" and "data_address" in error["hint"] and three in error["message"]


def test_no_mesh_leaves_nodes_with_the_heads_key_alone(head: Head) -> None:
    report = head.report("--tofu", "--no-mesh")
    assert report["pairs"] == {"verified": 0, "from_head": 3, "failed": []}
    for name in head.lab.names:
        assert head.lab.sh(name, "ls -A /root/.ssh") == "authorized_keys"


def test_a_key_with_a_passphrase_and_no_agent_is_refused_before_anything_is_sent(head: Head) -> None:
    key = head.home / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)], check=True)
    head.write_inventory({name: {} for name in head.lab.names}, identity_file=str(key))
    done = head.setup("--tofu")
    assert done.returncode == 122 and "passphrase" in done.stderr and "ssh-add" in done.stderr
    assert not head.ssh.exists()


def test_interrupted_leaves_nothing_half_and_goes_on_later(head: Head) -> None:
    head = head.first(2)
    lab = head.lab
    process = subprocess.Popen(
        [FLEET, "-i", str(head.inventory), "setup-ssh", "--tofu", "--password-file", str(lab.password_file)],
        env={**lab.env, "HOME": str(head.home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not (head.ssh / "id_ed25519.pub").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert b"Traceback" not in output[1]
    for name in lab.names:
        until(lambda at=name: ".fleet" not in lab.sh(at, "ls -A /root/.ssh 2>/dev/null || true"))  # type: ignore[misc]
    assert head.report("--tofu")["pairs"]["verified"] == 4
    assert head.fleet("setup-ssh", "--undo").returncode == 0
    assert [lab.sh(name, "ls -A /root/.ssh || true") for name in lab.names] == ["", ""]


def test_dry_run_sends_and_writes_nothing(head: Head) -> None:
    done = head.fleet("setup-ssh", "--dry-run", "--json")
    assert done.returncode == 0
    plan = json.loads(done.stdout)["plan"]
    assert list(plan["hosts"]) == head.lab.names and plan["verify"] == "9 pairs"
    assert list(head.home.iterdir()) == []
    assert [logged(head.lab, name, "Connection") for name in head.lab.names] == [0, 0, 0]


@pytest.mark.slow
def test_two_inventories_each_have_their_block(head: Head) -> None:
    head = head.first(2)
    one, _ = head.lab.names
    assert head.report("--tofu")["ok"]
    other = Head(head.lab, head.home, head.inventory.with_name("other.yaml"))
    other.inventory.write_text(f"hosts:\n  alias: {{address: {head.lab.address(one)}, user: root}}\n")
    assert other.report("--tofu")["pairs"]["verified"] == 1
    assert head.plain_ssh("alias", "hostname").stdout.strip() == one
    for each in (head, other):
        assert each.report()["changed"] is False
    assert other.fleet("setup-ssh", "--undo").returncode == 0
    assert head.report()["pairs"]["verified"] == 4


@pytest.mark.slow
def test_ipv6_and_a_name_in_capitals(head: Head) -> None:
    """In a host's own network, where ::1 is nobody else's; plain ssh lower-cases names before it looks them up."""
    lab, host = head.lab, head.lab.names[0]
    lab.sh(
        host,
        'rm -rf /root/six; mkdir /root/six; printf \'hosts: {GPU-Six: {address: "::1"}, self: '
        "{address: 127.0.0.1}}\\n' > /root/six/fleet.yaml; umask 077; cat > /root/six/pw <<EOF\n"
        f"{lab.password}\nEOF",
    )
    run = ["setsid", "-w", "sh", "-c", 'cd /root/six && exec "$@" </dev/null', "sh", FLEET, "setup-ssh"]
    done = lab.inside(host, *run, "--tofu", "--password-file", "pw", check=False)
    assert done.returncode == 0 and b"4 between hosts (each also with itself)" in done.stdout, done.stderr.decode()
    for name in ("GPU-Six", "::1", "self"):
        lab.inside(host, "ssh", "-o", "BatchMode=yes", name, "true")
    assert b"nothing to change" in lab.inside(host, *run).stdout
    # one after the other: the first to be undone takes the key of both
    undone = lab.inside(host, *run[:-1], "--fanout", "1", *run[-1:], "--undo", check=False)
    assert undone.returncode == 0, undone.stderr.decode()
    assert lab.sh(host, "ls -A /root/.ssh || true") == ""


def test_a_damaged_block_on_one_node_is_that_nodes_problem(head: Head) -> None:
    head = head.first(2)
    one, two = head.lab.names
    assert head.setup("--tofu").returncode == 0
    head.lab.sh(two, "sed -i '/<<< fleet/d' /root/.ssh/config")
    report = head.report(code=1)
    assert "marker lines do not pair" in report["hosts"][two]["error"]["message"]
    assert report["hosts"][one]["ok"]


def test_an_sshd_that_looks_for_keys_elsewhere_is_explained(head: Head) -> None:
    head = head.first(2)
    one = head.lab.names[0]
    head.lab.stop_sshd(one)
    head.lab.sh(
        one, "/usr/sbin/sshd -o AuthorizedKeysFile=/etc/ssh/keys/%u; while [ ! -e /run/sshd.pid ]; do sleep 0.02; done"
    )
    try:
        report = head.report("--tofu", code=122)
    finally:
        head.lab.stop_sshd(one)
        head.lab.start_sshd(one)
    error = report["hosts"][one]["error"]
    assert error["kind"] == "auth" and "AuthorizedKeysFile" in error["hint"]
    assert report["pairs"]["verified"] == 1


# -- a colleague's inventory --------------------------------------------------------------------------------
@pytest.mark.parametrize("pinned", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_inventory_does_not_pass_one_host_off_as_another(pinned: bool, head: Head) -> None:
    one, two, three = head.lab.names
    head.ssh.mkdir(mode=0o700)
    theirs = head.lab.sh(three, "cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub")
    known = f"github.example {theirs}\n"
    (head.ssh / "known_hosts").write_text(known)
    pin = {"host_key": fingerprint(head.lab, two)} if pinned else {}
    lines = {
        one: {"address": head.lab.address(one), "data_address": "bank.example"},
        "github.example": {"address": head.lab.address(two), **pin},
    }
    head.inventory.write_text(json.dumps({"defaults": {"user": "root"}, "hosts": lines}))
    hosts = head.report("--tofu", "--no-mesh", code=122)["hosts"]
    error = hosts["github.example"]["error"]
    assert hosts[one]["ok"] and error["kind"] == "host-key"
    assert fingerprint(head.lab, two) in error["message"] and fingerprint(head.lab, three) in error["message"]
    assert "--replace-key github.example" in error["hint"]
    text = (head.ssh / "known_hosts").read_text()
    assert text.startswith(known) and "bank.example" not in text and text.count("github.example") == 1
    assert head.lab.address(one) in text and f"\n{one} " not in text
    assert "github.example" not in (head.ssh / "config").read_text()
    assert head.plain_ssh(one, "true").returncode == 0
    assert logged(head.lab, two, "authentication") == 0

    assert head.report("--tofu", "--no-mesh", "--replace-key", "github.example")["ok"]
    text = (head.ssh / "known_hosts").read_text()
    assert "github.example" not in text and head.lab.address(two) in text
    assert head.plain_ssh("github.example", "hostname").stdout.strip() == two


@pytest.mark.slow
def test_undo_of_a_gateway_waits_for_those_behind_it(behind: Head) -> None:
    one, two, three = behind.lab.names
    assert behind.report("--tofu")["ok"]
    alone = behind.fleet("-w", one, "setup-ssh", "--undo")
    assert alone.returncode == 1 and "it is the way to" in alone.stderr
    assert behind.plain_ssh(two, "true").returncode == 0
    behind.lab.stop_sshd(two)
    done = behind.fleet("setup-ssh", "--undo", "--json")
    report = json.loads(done.stdout)["hosts"]
    assert not report[two]["ok"] and report[three]["ok"] and two in report[one]["error"]["message"]
    behind.lab.sh(
        two,
        "/usr/sbin/sshd -p 2222 -o AllowUsers=alice -E /var/log/sshd.log; "
        "while [ ! -e /run/sshd.pid ]; do sleep 0.02; done",
    )
    done = behind.fleet("setup-ssh", "--undo")
    assert done.returncode == 0, done.stderr
    assert behind.lab.sh(two, "ls -A /home/alice/.ssh || true") == behind.lab.sh(one, "ls -A /root/.ssh || true") == ""


@pytest.mark.slow
def test_undo_of_one_inventory_leaves_what_another_needs(head: Head) -> None:
    head = head.first(2)
    assert head.report("--tofu")["ok"]
    other = Head(head.lab, head.home, head.inventory.with_name("other.yaml"))
    other.inventory.write_text(head.inventory.read_text())
    assert other.report("--tofu")["ok"]
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0 and "other.yaml" in done.stderr, done.stderr
    assert other.fleet("exec", "--", "true").returncode == 0
    assert other.report()["pairs"]["verified"] == 4
    done = other.fleet("setup-ssh", "--undo")
    assert done.returncode == 0, done.stderr
    assert [head.lab.sh(name, "ls -A /root/.ssh || true") for name in head.lab.names] == ["", ""]
    assert not list(head.ssh.glob("*"))


@pytest.mark.slow
def test_a_replaced_machines_old_key_goes_from_the_others(head: Head) -> None:
    head = head.first(2)
    one, two = head.lab.names
    assert head.report("--tofu")["ok"]
    old = head.lab.sh(two, "cut -d' ' -f2 /root/.ssh/id_ed25519.pub")
    assert old in read(head.lab, one, "authorized_keys").decode()
    head.lab.swap_host_key(two)
    head.lab.sh(two, "rm -rf /root/.ssh")  # installed anew
    done = head.setup("--tofu", "--replace-key", two)
    assert done.returncode == 0, done.stdout + done.stderr
    new = head.lab.sh(two, "cut -d' ' -f2 /root/.ssh/id_ed25519.pub")
    for name in (one,):
        keys = read(head.lab, name, "authorized_keys").decode()
        assert new in keys and old not in keys, name
