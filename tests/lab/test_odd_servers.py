"""Every verb on servers that are not OpenSSH as Debian sets it up: one session and one try a connection; Dropbear."""

from __future__ import annotations

import shutil
import sys

import pytest

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.ssh.transport import SshTransport
from tests.lab.healing import BreakableLab
from tests.lab.setup_ssh_tools import Head


@pytest.fixture(scope="module")
def head(breakable: BreakableLab, tmp_path_factory: pytest.TempPathFactory) -> Head:
    """Three hosts, set up from a password: a miserly sshd, a Dropbear, an sshd as it comes."""
    lab = breakable.first(3)
    miser, dropbear, _ = lab.names
    for name in (miser, dropbear):
        lab.stop_sshd(name)
    miserly = "/usr/sbin/sshd -E /var/log/sshd.log -o MaxSessions=1 -o MaxAuthTries=1"
    lab.sh(miser, f"{miserly}; while [ ! -e /run/sshd.pid ]; do sleep 0.02; done")
    assert shutil.which("dropbear", path="/usr/sbin:/usr/bin:/sbin"), "Debian: dropbear-bin"
    lab.sh(dropbear, "mkdir -p /etc/dropbear; dropbear -R -E -P /run/dropbear.pid >/var/log/dropbear.log 2>&1")
    home = tmp_path_factory.mktemp("odd")
    head = Head(lab, home / "home", home / "fleet.yaml")
    head.home.mkdir()
    head.write_inventory({name: {} for name in lab.names}, python=sys.executable, workdir="~/odd")
    return head


def test_from_a_password_to_every_pair_and_every_verb(head: Head) -> None:
    report = head.report("--tofu")
    assert report["pairs"] == {"verified": 9, "from_head": 3, "failed": []}
    miser = head.lab.names[0]
    assert int(head.lab.sh(miser, "grep -c 'Accepted password' /var/log/sshd.log")) == 1
    source = head.home / "code"
    source.mkdir()
    (source / "train.sh").write_text("cat big | wc -c; hostname\n")
    (source / "big").write_bytes(b"0123456789abcdef" * 300_000)  # large enough for blocks
    for args in (
        ["exec", "--", "cat", "/etc/hostname"],
        ["sync", str(source)],
        ["sync", str(source)],
        ["sync", "--data", f"{source}/big:/tmp/odd/big"],
        ["check"],
        ["kill-port", "1"],
    ):
        done = head.fleet(*args)
        assert done.returncode == 0, (args, done.stdout, done.stderr)
    done = head.fleet("launch", "--engine", "command", "--nproc-per-node", "1", "sh", "train.sh")
    assert done.returncode == 0 and done.stdout.count("4800000") == 3, done.stdout + done.stderr


def test_dropbears_channels_that_close_at_once_are_opened_again(head: Head) -> None:
    name = head.lab.names[1]
    made = SshTransport(ConnectOptions(120), home=head.home)
    host, lost = Host(name, head.lab.address(name), user="root"), 0
    session = made.connect(host, Cancel())
    for _ in range(15):  # without a second try about every third fails
        try:
            session.start("cat").close()
            channel = session.start("echo hi; cat")
        except ConnectError as error:  # about one time in a hundred this Dropbear ends a connection by itself
            assert error.kind == "lost" and lost < 3
            lost += 1
            session = made.connect(host, Cancel())
            continue
        assert channel.recv(120) == b"hi\n"
        channel.close()
    session.close()
    made.close()
