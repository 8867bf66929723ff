"""`fleet kill-port` over real sshd: ends what was shown, on every host, and never the way we came in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lab.virtual_lab import VirtualLab

PORT = 29543
LISTEN = (
    "import signal, socket, sys, time\n"
    "if 'stubborn' in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)\n"
    "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
    "s.bind((sys.argv[1], int(sys.argv[2]))); s.listen(); print('up', flush=True); time.sleep(600)\n"
)


def listen(lab: VirtualLab, host: str, address: str = "0.0.0.0", how: str = "", before: str = "") -> str:
    """Start a listener in a host; its pid there."""
    line = (
        f'rm -f /run/up; {before} setsid /usr/bin/python3 -c "$0" {address} {PORT} {how} >/run/up 2>&1 & '
        "until grep -q up /run/up; do sleep 0.02; done"
    )
    lab.inside(host, "sh", "-c", line, LISTEN)
    return holders(lab, host)[0]


def holders(lab: VirtualLab, host: str) -> list[str]:
    """Pids of the listeners of this file, by their command line: another way than the one under test."""
    # [3]: this very line must not match itself
    find = r"""for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline|grep -q ' 2954[3] ' && echo ${p#/proc/}; done; true"""
    return lab.sh(host, find).split()


def kill_port(lab: VirtualLab, *args: str, code: int) -> dict[str, Any]:
    done = lab.fleet("-i", "lab", "kill-port", "--json", *args)
    assert done.returncode == code, done.stdout + done.stderr
    hosts: dict[str, Any] = json.loads(done.stdout)["hosts"]
    return hosts


@pytest.fixture(autouse=True)
def tidy(ready_lab: VirtualLab) -> Any:
    yield
    for host in ready_lab.names:
        for pid in holders(ready_lab, host):
            ready_lab.sh(host, f"kill -9 {pid}", check=False)


def test_listeners_on_some_hosts_are_ended(ready_lab: VirtualLab) -> None:
    first, second, third, _ = ready_lab.names
    pids = {
        first: listen(ready_lab, first, before="FLEET_RUN_ID=run-9-20260101-000000-abcd"),
        second: listen(ready_lab, second, "::1"),
        third: listen(ready_lab, third, how="stubborn"),
    }
    hosts = kill_port(ready_lab, "-y", "--grace", "0.5", str(PORT), code=0)
    for name, pid in pids.items():
        (entry,) = hosts[name]["listeners"]
        assert (entry["pid"], entry["ended"], entry["user"]) == (int(pid), True, "root")
        assert holders(ready_lab, name) == []
    assert hosts[first]["listeners"][0]["run_id"] == "run-9-20260101-000000-abcd"
    assert hosts[second]["listeners"][0]["address"] == "::1"
    assert hosts[ready_lab.names[3]]["listeners"] == []
    again = ready_lab.fleet("-i", "lab", "kill-port", str(PORT))
    assert again.returncode == 0 and f"nothing listens on port {PORT}" in again.stdout


def test_without_a_terminal_it_shows_and_leaves(ready_lab: VirtualLab) -> None:
    name = ready_lab.names[0]
    pid = listen(ready_lab, name)
    done = ready_lab.fleet("-i", "lab", "kill-port", str(PORT))
    assert done.returncode == 2 and pid in done.stdout and "-y" in done.stderr
    assert holders(ready_lab, name) == [pid]


def test_another_users_listener(ready_lab: VirtualLab) -> None:
    name = ready_lab.names[0]
    pid = listen(ready_lab, name, before="setpriv --reuid=65534 --clear-groups")
    hosts = kill_port(ready_lab, "-y", str(PORT), code=1)
    (entry,) = hosts[name]["listeners"]
    assert entry["user"] == "nobody" and not entry["ended"] and "belongs to nobody" in entry["reason"]
    assert "--force" in hosts[name]["error"]["hint"] and holders(ready_lab, name) == [pid]
    assert kill_port(ready_lab, "-y", "--force", str(PORT), code=0)[name]["listeners"][0]["ended"]
    assert holders(ready_lab, name) == []


def test_the_sshd_we_came_through_is_never_ended(ready_lab: VirtualLab) -> None:
    hosts = kill_port(ready_lab, "-y", "--force", "22", code=1)
    for host in hosts.values():
        assert host["listeners"]
        assert all(not e["ended"] and "SSH connection" in e["reason"] for e in host["listeners"])
    assert ready_lab.fleet("-i", "lab", "exec", "--", "true").returncode == 0


def test_nor_after_the_listener_was_restarted_under_us(ready_lab: VirtualLab) -> None:
    """A new sshd is nobody's ancestor here: what tells is the port of this connection."""
    name = ready_lab.names[1]
    ready_lab.stop_sshd(name)
    ready_lab.start_sshd(name)
    (entry, *_) = kill_port(ready_lab, "-w", name, "-y", "--force", "22", code=1)[name]["listeners"]
    assert not entry["ended"]
    assert ready_lab.fleet("-i", "lab", "-w", name, "exec", "--", "true").returncode == 0
