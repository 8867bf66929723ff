"""setup-ssh where something is wrong on a node or on the head: said in its own words, with the line that mends it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from private_sshd import hung_agent
from setup_ssh_tools import Head, forget_all
from virtual_lab import LabFactory, VirtualLab


@pytest.fixture(scope="module")
def hosts(lab_factory: LabFactory) -> VirtualLab:
    return lab_factory(3)


@pytest.fixture
def head(hosts: VirtualLab, tmp_path: Path) -> Head:
    forget_all(hosts)
    home = tmp_path / "home"
    home.mkdir()
    head = Head(hosts, home, tmp_path / "fleet.yaml")
    head.write_inventory({name: {} for name in hosts.names})
    return head


# -- the head's agent -------------------------------------------------------------------------------------
def test_a_hung_agent_is_left_out_with_a_word_or_named_where_it_is_needed(head: Head, tmp_path: Path) -> None:
    env = {"SSH_AUTH_SOCK": str(tmp_path / "agent")}
    with hung_agent(tmp_path / "agent", "accepts"):
        done = head.setup("--tofu", "--connect-timeout", "4", env=env)
        assert done.returncode == 0, done.stderr
        assert f"the ssh-agent at {tmp_path}/agent does not answer" in done.stderr and "9 pairs verified" in done.stdout
        key = head.ssh / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True)
        done = head.setup("--connect-timeout", "2", env=env)
    assert done.returncode == 122
    assert "has a passphrase, and the ssh-agent at" in done.stderr and "unset SSH_AUTH_SOCK" in done.stderr
