"""`fleet init` on hosts as they are rented: pasted ssh lines, odd ports, a second network among them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab
from tests.standin import standin_python

SCRIPT = """
import os
print("rank {RANK} of {WORLD_SIZE} by {MASTER_ADDR}".format(**os.environ))
"""


@pytest.fixture(scope="module")
def rented(breakable: BreakableLab) -> Iterator[VirtualLab]:
    """Three hosts that take this head's key, each with sshd on a port of its own, a second interface, a venv with
    torch."""
    lab = breakable.first(3)
    (lab.home / ".ssh").mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", lab.home / ".ssh/id_ed25519"], check=True)
    key = (lab.home / ".ssh/id_ed25519.pub").read_bytes()
    switch = json.loads((lab.state_dir / "state.json").read_text())["switch_pid"]
    in_switch = ["nsenter", f"--net=/proc/{switch}/ns/net", "ip", "-batch", "-"]
    subprocess.run(
        in_switch, input=b"link add name private type bridge forward_delay 0\nlink set private up\n", check=True
    )
    (site,) = Path(standin_python()).parents[1].glob("lib/*/site-packages")
    for number, name in enumerate(lab.names, 1):
        cable = f"link add name eth1 netns {lab.hosts[name]['pid']} type veth peer name q{number} netns {switch}\n"
        subprocess.run(["ip", "-batch", "-"], input=cable.encode(), check=True)
        subprocess.run(in_switch, input=f"link set q{number} master private up\n".encode(), check=True)
        lab.sh(name, f"ip addr add 198.18.250.{number}/24 dev eth1 && ip link set eth1 up")
        lab.inside(name, "sh", "-c", "mkdir -p -m 700 /root/.ssh && cat > /root/.ssh/authorized_keys", stdin=key)
        lab.stop_sshd(name)
        lab.sh(name, f"/usr/sbin/sshd -p {33020 + number}; while [ ! -e /run/sshd.pid ]; do sleep 0.02; done")
        lab.sh(
            name,
            f"{sys.executable} -m venv --without-pip ~/venv; cd ~/venv/lib/*/site-packages && echo {site} > x.pth",
        )
    yield lab
    subprocess.run(in_switch, input=b"link del private\n", check=True)


def lines(lab: VirtualLab) -> str:
    return "".join(f"ssh root@{lab.address(name)} -p {33020 + n}\n" for n, name in enumerate(lab.names, 1))


def test_what_it_writes_launches_at_the_first_try(rented: VirtualLab, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    said = rented.fleet("init", "--tofu", "-", cwd=tmp_path, stdin=lines(rented), check=True).stdout
    assert "fleet launch --sync train.py" in said and "/root/venv/bin/python" in said
    told = json.loads(rented.fleet("hosts", "--json", cwd=tmp_path, check=True).stdout)["hosts"]
    assert [(name, each["port"], each["data_address"]) for name, each in told.items()] == [
        (f"node{n}", 33020 + n, f"198.18.250.{n}") for n in (1, 2, 3)
    ]
    assert all(each["host_key"].startswith("SHA256:") for each in told.values())
    done = rented.fleet("launch", "--sync", "--engine", "command", "python", "train.py", cwd=tmp_path, check=True)
    ranks = {path.read_text() for path in tmp_path.glob("runs/*-*/*/rank*.out")}
    assert ranks == {f"rank {rank} of 3 by 198.18.250.1\n" for rank in range(3)}, done.stdout
    for name in rented.names:
        rented.sh(name, "rm -r /root/fleet")


def test_run_again_it_adds_what_is_missing_and_asks_first(rented: VirtualLab, tmp_path: Path) -> None:
    rented.sh(rented.names[1], "mv /root/.ssh/authorized_keys /root/.ssh/away")
    lost = "ssh root@198.18.250.99 -p 33\n"
    done = rented.fleet("init", "--json", "--tofu", "-", cwd=tmp_path, stdin=lines(rented) + lost)
    document = json.loads(done.stdout)
    assert done.returncode == 122 and document["written"]
    kinds = {name: host["error"] and host["error"]["kind"] for name, host in document["hosts"].items()}
    assert [kinds[f"node{n}"] for n in (1, 2, 3)] == [None, "auth", None] and kinds["node4"]
    assert document["next"][0] == "fleet setup-ssh -w node2"
    rented.sh(rented.names[1], "mv /root/.ssh/away /root/.ssh/authorized_keys")

    file = tmp_path / "fleet.yaml"
    mine = "\n".join(line for line in file.read_text().splitlines() if "node4" not in line) + "  # mine\n"
    file.write_text(mine)
    done = rented.fleet("init", cwd=tmp_path)
    assert done.returncode == 2 and "no user can be asked" in done.stderr and file.read_text() == mine
    assert "+  node2: {" in done.stdout and "data_address: 198.18.250.2" in done.stdout
    assert answered(rented, tmp_path, "n") == 0 and file.read_text() == mine
    assert answered(rented, tmp_path, "y") == 0
    text = file.read_text()
    (changed,) = set(text.splitlines()) - set(mine.splitlines())
    assert changed.startswith("  node2: {") and "data_address: 198.18.250.2" in changed and text.endswith("# mine\n")
    assert "has all of it" in rented.fleet("init", cwd=tmp_path, check=True).stderr and file.read_text() == text


NAME = b"box\n  evil: {activate: touch /tmp/owned}\n  # \x1b]0;x"
CALL = "import ctypes, sys; name = bytes.fromhex(sys.argv[1]); sys.exit(ctypes.CDLL(None).sethostname(name, len(name)))"


@pytest.mark.slow
def test_the_name_that_a_node_has_given_itself_is_no_part_of_the_file(rented: VirtualLab, tmp_path: Path) -> None:
    victim, node = rented.names[:2]
    (tmp_path / "fleet.yaml").write_text(f"hosts:\n  mine: {{address: {rented.address(victim)}, port: 33021}}\n")
    paste = lines(rented).splitlines()
    before = rented.sh(node, "hostname").strip()
    rented.inside(node, "python3", "-c", CALL, NAME.hex())
    try:
        rented.fleet("init", "--tofu", "-y", "-", cwd=tmp_path, stdin=paste[1] + "\n", check=True)
        rented.fleet("-i", "new.yaml", "init", "--tofu", "-", cwd=tmp_path, stdin="\n".join(paste[:2]), check=True)
    finally:
        rented.inside(node, "python3", "-c", CALL, before.encode().hex())
    for name, hosts in (("fleet.yaml", ["mine", "node1"]), ("new.yaml", ["node1", "node2"])):
        text = (tmp_path / name).read_text()
        told = json.loads(rented.fleet("-i", name, "hosts", "--json", cwd=tmp_path, check=True).stdout)["hosts"]
        assert list(told) == hosts and not any(each["activate"] for each in told.values()), text
        assert r"  # box\n  evil: {activate: touch /tmp/owned}\n  # \x1b]0;x: " in text
        rented.fleet("-i", name, "exec", "--env-of", "python", "--", "true", cwd=tmp_path, check=True)
    assert rented.sh(victim, "ls /tmp").find("owned") < 0


def answered(lab: VirtualLab, cwd: Path, word: str) -> int:
    """Run it on a terminal, where its one question is answered so."""
    terminal, its_end = pty.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", lab.program, "init"], cwd=cwd, env=lab.env, stdin=its_end, stdout=its_end, stderr=its_end
    ) as program:
        os.close(its_end)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(terminal, 65536)
        os.write(terminal, word.encode() + b"\n")
        try:
            while os.read(terminal, 65536):
                pass
        except OSError:  # the terminal's other end is closed
            os.close(terminal)
    return program.returncode


def test_a_bastion_whose_key_nobody_knows_is_no_circle(hosts: VirtualLab, tmp_path: Path) -> None:
    """Of ~/.ssh/config: init asks for its key, too, and leaves what setup-ssh goes on with."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    at = [hosts.address(name) for name in hosts.names[:2]]
    (home / ".ssh/config").write_text(
        f"Host bastion\n  HostName {at[0]}\n  User root\n"
        f"Host inner\n  HostName {at[1]}\n  User root\n  ProxyJump bastion\n"
    )
    (tmp_path / "pw").write_text(hosts.password)
    (tmp_path / "pw").chmod(0o600)
    env = {"HOME": str(home)}
    done = hosts.fleet("init", "-w", "inner", "--tofu", cwd=tmp_path, env=env)
    assert done.returncode == 122 and "next:\n  fleet setup-ssh\n  fleet init\n" in done.stdout, done
    assert "gateway bastion: not authenticated as root" in done.stderr
    assert "  inner: {}\n" in (tmp_path / "fleet.yaml").read_text()
    done = hosts.fleet("setup-ssh", "--tofu", "--password-file", "pw", "--no-mesh", cwd=tmp_path, env=env)
    assert "bastion: host key trusted on first use" in done.stderr + done.stdout  # this ssh has another home
    assert hosts.fleet("init", "-y", cwd=tmp_path, env=env).returncode == 0
    assert hosts.fleet("exec", "--", "hostname", cwd=tmp_path, env=env).stdout.split()[-1] == hosts.names[1]
