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
    first, second, third = ready_lab.names
    pids = {
        first: listen(ready_lab, first, how="stubborn", before="FLEET_RUN_ID=run-9-20260101-000000-abcd"),
        second: listen(ready_lab, second, "::1"),
    }
    hosts = kill_port(ready_lab, "-y", "--grace", "0.5", str(PORT), code=0)
    for name, pid in pids.items():
        (entry,) = hosts[name]["listeners"]
        assert (entry["pid"], entry["ended"], entry["user"]) == (int(pid), True, "root")
        assert holders(ready_lab, name) == []
    assert hosts[first]["listeners"][0]["run_id"] == "run-9-20260101-000000-abcd"
    assert hosts[second]["listeners"][0]["address"] == "::1"
    assert hosts[third]["listeners"] == []
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
        assert all(not e["ended"] and "carries this connection" in e["reason"] for e in host["listeners"])
    assert ready_lab.fleet("-i", "lab", "exec", "--", "true").returncode == 0


def test_nor_after_the_listener_was_restarted_under_us(ready_lab: VirtualLab) -> None:
    """A new sshd is nobody's ancestor here: what tells is the port of this connection."""
    name = ready_lab.names[1]
    ready_lab.stop_sshd(name)
    ready_lab.start_sshd(name)
    (entry, *_) = kill_port(ready_lab, "-w", name, "-y", "--force", "22", code=1)[name]["listeners"]
    assert not entry["ended"]
    assert ready_lab.fleet("-i", "lab", "-w", name, "exec", "--", "true").returncode == 0


FORWARD = (
    "import os, select, socket, sys\n"
    "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
    "s.bind(('0.0.0.0', 33)); s.listen(); print('up', flush=True)\n"
    "while True:\n"
    "    a, _ = s.accept()\n"
    "    if os.fork(): a.close(); continue\n"
    "    b = socket.create_connection(('127.0.0.1', 22))\n"
    "    while True:\n"
    "        for x in select.select([a, b], [], [])[0]:\n"
    "            data = x.recv(65536)\n"
    "            if not data: os._exit(0)\n"
    "            (b if x is a else a).sendall(data)\n"
)


@pytest.mark.parametrize(
    "by",
    [
        "the port that is dialled",
        pytest.param("the connection", marks=pytest.mark.slow),
        pytest.param("the port of a host behind it", marks=pytest.mark.slow),
    ],
)
def test_a_forwarder_that_we_came_through_is_never_ended(ready_lab: VirtualLab, tmp_path: Any, by: str) -> None:
    """As docker-proxy, socat, a hostPort: sshd listens on 22, the inventory dials 33."""
    name = ready_lab.names[2]
    line = 'rm -f /run/fwd; setsid /usr/bin/python3 -c "$0" >/run/fwd 2>&1 & '
    line += "until grep -q up /run/fwd; do sleep 0.02; done"
    ready_lab.inside(name, "sh", "-c", line, FORWARD)
    try:
        inventory = tmp_path / "fleet.yaml"
        host = f"{{address: {ready_lab.address(name)}, port: 33}}"
        behind = f"  behind: {host}\n" if by.endswith("behind it") else ""
        if behind:
            host = f"{{address: {ready_lab.address(name)}}}"
        inventory.write_text(f"defaults: {{user: root}}\nhosts:\n  {name}: {host}\n{behind}")
        known = ready_lab.home / ".ssh/known_hosts"
        key = ready_lab.sh(name, "cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub")
        before = known.read_text()
        known.write_text(f"{before}[{ready_lab.address(name)}]:33 {key}\n")
        port = "33" if by.startswith("the port") else "22"
        done = ready_lab.fleet("-i", str(inventory), "-w", name, "kill-port", "--json", "-y", "--force", port)
        entries = json.loads(done.stdout)["hosts"][name]["listeners"]
        assert done.returncode == 1 and entries
        assert all(not entry["ended"] and "carries this connection" in entry["reason"] for entry in entries)
        assert ready_lab.fleet("-i", str(inventory), "exec", "--", "true").returncode == 0
    finally:
        known.write_text(before)
        find = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline | grep -q \"0.0.0.0', 3[3]\" && kill -9 ${p#/proc/}"
        ready_lab.sh(name, f"{find}; done", check=False)


def test_a_live_run_is_ended_where_it_is_named_only(ready_lab: VirtualLab, tmp_path: Any) -> None:
    name = ready_lab.names[0]
    bound = f"s = socket.socket(); s.bind(('0.0.0.0', {PORT})); s.listen()"
    text = f"import socket, time\n{bound}\nprint('up', {PORT}, flush=True)\ntime.sleep(600)\n"
    (tmp_path / "serve.py").write_text(text)
    words = ["-i", "lab", "-w", name]
    ready_lab.sh(name, "mkdir -p /root/serve")
    ready_lab.inside(name, "sh", "-c", "cat > /root/serve/serve.py", stdin=(tmp_path / "serve.py").read_bytes())
    launch = ["launch", "--engine", "command", "--no-preflight", "--detach", "--workdir", "/root/serve"]
    started = ready_lab.fleet(*words, *launch, "/usr/bin/python3", "serve.py", cwd=tmp_path)
    assert started.returncode == 0, started.stderr
    for _ in range(100):
        (entries,) = [kill_port_once(ready_lab, words, "--dry-run")[name]["listeners"]]
        if entries:
            break
    run = entries[0]["run_id"]
    assert run
    done = ready_lab.fleet(*words, "kill-port", "-y", str(PORT))
    assert done.returncode == 1 and f"it belongs to the live run {run}" in done.stderr, done.stderr
    assert f"fleet stop {run}" in done.stderr.replace("-i lab ", "").replace(f"-w {name} ", "")
    assert f"--run {run}" in done.stderr
    assert kill_port_once(ready_lab, words, "-y", "--run", run)[name]["listeners"][0]["ended"]
    ready_lab.fleet(*words, "stop", run, cwd=tmp_path)


def kill_port_once(lab: VirtualLab, words: list[str], *args: str) -> dict[str, Any]:
    done = lab.fleet(*words, "kill-port", "--json", *args, str(PORT))
    hosts: dict[str, Any] = json.loads(done.stdout)["hosts"]
    return hosts
