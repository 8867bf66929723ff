"""What tests do to the lab to break is undone between them, and what they did not touch is not."""

from __future__ import annotations

import pytest

from tests.lab.healing import BreakableLab


@pytest.mark.slow
def test_each_trouble_is_undone_and_only_what_has_to_be_is_started_again(breakable: BreakableLab) -> None:
    lab = breakable
    cut, frozen, silent, changed = lab.names

    def healed() -> list[str]:
        """The hosts that were switched off and on."""
        before = dict(lab.hosts)
        lab.heal()
        assert all(host["up"] for host in lab.hosts.values())
        assert not any(lab.sh(name, "ls -d /root/.ssh/* /home/ada 2>/dev/null", check=False) for name in lab.names)
        lab.enrol().fleet("-i", "lab", "exec", "--", "ssh", "-o", "BatchMode=yes", cut, "true", check=True)
        return [name for name in lab.names if lab.hosts[name] != before[name]]

    lab.heal()
    assert healed() == []
    lab.fleet("lab", "cut", cut, check=True)
    lab.fleet("lab", "freeze", frozen, check=True)
    lab.fleet("lab", "link", changed, "20mbit", check=True)
    lab.stop_sshd(silent)
    lab.sh(changed, "mkdir /root/x /tmp/y; echo 1 > /root/.bashrc; setsid sleep 4242 >/dev/null 2>&1 &")
    lab.swap_host_key(changed)
    assert healed() == []
    assert lab.sh(changed, "ls -A /root /tmp | grep -x 'x\\|y\\|.bashrc'; pgrep -fx 'sleep 4242'", check=False) == ""
    assert "tbf" not in lab.sh(changed, "tc qdisc show dev eth0")
    lab.sh(changed, "useradd -m ada")
    lab.sh(silent, "ip route add blackhole 198.18.255.1/32")
    lab.sh(frozen, "mkdir /opt/full && mount -t tmpfs none /opt/full")
    lab.fleet("lab", "kill", cut, check=True)
    assert healed() == lab.names
    lab.spoil(cut)
    assert healed() == [cut]
