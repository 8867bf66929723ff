"""Who relies on what setup-ssh has put into an account: hosts that left the inventory, other heads, earlier logins,
inventories that were moved. A key goes when nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.setup_ssh_tools import Head
from tests.lab.virtual_lab import FLEET

EMPTY = "ls -A /root/.ssh 2>/dev/null || true"


def clean(head: Head) -> bool:
    """Nothing of fleet is left anywhere."""
    there = [head.lab.sh(name, EMPTY) for name in head.lab.names]
    return not any(there) and not list(head.ssh.glob("*")) and not list((head.home / ".fleet/setup-ssh").iterdir())


def test_a_host_that_left_the_inventory_keeps_the_key_that_leads_there(head: Head) -> None:
    head = head.first(2)
    one, two = head.lab.names
    assert head.setup("--tofu").returncode == 0
    head.write_inventory({one: {}})
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0 and f"entries for {two}, which left the inventory" in done.stderr, done.stderr
    assert head.lab.sh(one, EMPTY) == "" and head.plain_ssh(two, "true").returncode == 0
    again = head.fleet("setup-ssh", "--undo")
    assert again.returncode == 0 and head.plain_ssh(two, "true").returncode == 0, again.stderr
    head.write_inventory({one: {}, two: {}})
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0 and clean(head), done.stderr


@pytest.fixture
def other(head: Head, tmp_path: Path) -> Head:
    """Another head of the first two hosts."""
    home = tmp_path / "other"
    home.mkdir()
    return Head(head.lab, home, home / "fleet.yaml").first(2)


def test_a_mesh_of_another_head_outlives_an_undo(head: Head, other: Head) -> None:
    head = head.first(2)
    one, two = head.lab.names
    for each in (head, other):
        assert each.setup("--tofu").returncode == 0
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0 and f"{one[:-2]}[01-02]: its key, and what" in done.stderr, done.stderr
    head.lab.inside(one, "ssh", "-o", "BatchMode=yes", two, "true")
    assert other.fleet("exec", "--", "true").returncode == 0
    assert other.report()["pairs"]["verified"] == 4
    assert not list(head.ssh.glob("*")) and head.lab.sh(one, "grep -c '>>> fleet' /root/.ssh/config") == "1"


def test_the_later_head_may_go_first(head: Head, other: Head) -> None:
    head = head.first(2)
    for each in (head, other):
        assert each.setup("--tofu").returncode == 0
    assert other.fleet("setup-ssh", "--undo").returncode == 0
    assert head.report()["pairs"]["verified"] == 4
    assert head.fleet("setup-ssh", "--undo").returncode == 0
    assert clean(head)


def test_heads_whose_inventories_have_one_path_have_blocks_of_their_own(head: Head) -> None:
    """Hosts are heads here: root's ~/fleet.yaml, on each."""
    lab = head.lab
    one, two, three = lab.names
    text = f"defaults: {{user: root}}\\nhosts: {{{three}: {{address: {lab.address(three)}}}}}\\n"
    words = "-i /root/fleet.yaml --connect-timeout 60 setup-ssh --tofu --password-file -"
    for name in (one, two):
        lab.sh(name, f"printf '{text}' > /root/fleet.yaml; echo {lab.password} | {FLEET} {words}")
    assert lab.sh(three, "grep -c '>>> fleet' /root/.ssh/config") == "2"
    lab.sh(one, f"{FLEET} -i /root/fleet.yaml setup-ssh --undo")
    assert lab.sh(two, f"{FLEET} -i /root/fleet.yaml setup-ssh") != ""
    lab.sh(two, f"{FLEET} -i /root/fleet.yaml setup-ssh --undo")
    for name in (one, two):
        lab.sh(name, "rm -rf /root/fleet.yaml /root/.fleet")


@pytest.mark.parametrize("login", ["alice", "root"])
def test_a_changed_login_leaves_nothing(head: Head, login: str) -> None:
    """login: in the inventory when it is undone. What was left under the earlier one is undone as well."""
    head = head.first(1)
    (one,) = head.lab.names
    head.lab.sh(one, "id alice >/dev/null 2>&1 || useradd -m -s /bin/bash alice; rm -rf /home/alice/.ssh")
    head.lab.inside(one, "chpasswd", stdin=f"alice:{head.lab.password}\n".encode())
    assert head.setup("--tofu").returncode == 0
    head.write_inventory({one: {"user": "alice"}})
    assert head.setup("--tofu").returncode == 0
    head.write_inventory({one: {"user": login}})
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0, done.stderr
    assert head.lab.sh(one, "ls -A /home/alice/.ssh 2>/dev/null || true") == "" and clean(head)


@pytest.mark.parametrize("again", [False, True])
def test_an_inventory_that_was_moved_is_undone(head: Head, tmp_path: Path, again: bool) -> None:
    """again: it was set up at its new place, too."""
    head = head.first(2)
    assert head.setup("--tofu").returncode == 0
    (tmp_path / "deep").mkdir()
    head.inventory = head.inventory.rename(tmp_path / "deep/hosts.yaml")
    if again:
        assert head.report("--tofu")["pairs"]["verified"] == 4
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0 and clean(head), done.stderr


def test_an_inventory_of_others_takes_nothing_over(head: Head, tmp_path: Path) -> None:
    """The one that is gone had a host of that name somewhere else."""
    one, two, three = head.lab.names
    head.write_inventory({one: {}, two: {}})
    assert head.setup("--tofu", "--no-mesh").returncode == 0
    other = Head(head.lab, head.home, tmp_path / "other.yaml")
    head.inventory.unlink()
    other.write_inventory({one: {"address": head.lab.address(three)}})
    assert other.setup("--tofu", "--no-mesh").returncode == 0
    done = other.fleet("setup-ssh", "--undo")
    assert done.returncode == 0, done.stderr
    assert "root/.ssh/authorized_keys" in head.lab.sh(one, "ls /root/.ssh/authorized_keys")
    assert (head.ssh / "id_ed25519").exists()
    head.write_inventory({one: {}, two: {}})
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0 and clean(head), done.stderr


def test_a_key_stays_beside_hosts_that_others_made_known(head: Head) -> None:
    head = head.first(2)
    one, two = head.lab.names
    assert head.setup("--tofu").returncode == 0
    line = f"code.example {head.lab.sh(two, 'cat /etc/ssh/ssh_host_ed25519_key.pub')}"
    head.lab.sh(one, f"echo '{line}' >> /root/.ssh/known_hosts")
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0 and "id_ed25519 stays" in done.stdout, (done.stdout, done.stderr)
    assert head.lab.sh(one, "ls /root/.ssh").split() == ["id_ed25519", "id_ed25519.pub", "known_hosts"]
    assert head.lab.sh(two, EMPTY) == ""
