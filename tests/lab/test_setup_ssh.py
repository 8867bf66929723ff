"""setup-ssh on real sshd: from a password to every pair, twice, and back."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.setup_ssh_tools import Head, fingerprint, logged, on_terminal
from tests.lab.virtual_lab import FLEET


# -- the main path ----------------------------------------------------------------------------------------
def test_twice_changes_no_byte_and_every_pair_works(head: Head) -> None:
    first = head.setup("--tofu")
    assert first.returncode == 0, first.stderr
    assert "9 between hosts (each also with itself)" in first.stdout
    names = head.lab.names
    for source in names:
        for target in names:
            head.lab.inside(source, "ssh", "-o", "BatchMode=yes", target, "true")
        head.lab.inside(source, "ssh", "-o", "BatchMode=yes", head.lab.address(names[0]), "true")
        assert logged(head.lab, source, "Accepted password") == 1
    assert [head.plain_ssh(name, "hostname").stdout.strip() for name in names] == names

    before = head.everything()
    second = head.fleet("setup-ssh")  # no password, no --tofu: nothing of that is needed any more
    assert second.returncode == 0, second.stderr
    assert "nothing to change" in second.stdout and "9 between hosts (each also with itself)" in second.stdout
    quiet, more = head.fleet("setup-ssh", "-q"), head.fleet("setup-ssh", "-v")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    assert all(f"\n{host}: root@198.18." in more.stderr for host in head.lab.names)
    assert head.everything() == before


def test_each_node_has_its_own_key_and_no_private_key_travelled(head: Head) -> None:
    head = head.first(2)
    assert head.setup("--tofu").returncode == 0
    private = [head.lab.sh(name, "cat /root/.ssh/id_ed25519") for name in head.lab.names]
    private.append((head.ssh / "id_ed25519").read_text().strip())
    assert len(set(private)) == len(private)
    for name in head.lab.names:
        assert head.lab.sh(name, "grep -l PRIVATE /root/.ssh/* | wc -l") == "1"
        assert head.lab.sh(name, "stat -c %a /root/.ssh /root/.ssh/*").split() == [
            "700",
            *{
                "authorized_keys": "600",
                "config": "600",
                "id_ed25519": "600",
                "id_ed25519.pub": "600",
                "known_hosts": "600",
            }.values(),
        ]


def test_the_head_may_be_one_of_the_hosts(head: Head) -> None:
    """Plain `ssh HOST` without -F: this head's home is the one in the user database."""
    head = head.first(2)
    lab, first = head.lab, head.lab.names[0]
    text = head.inventory.read_text()
    lab.inside(first, "sh", "-c", "mkdir -p /root/job && cat > /root/job/fleet.yaml", stdin=text.encode())
    lab.inside(first, "sh", "-c", "umask 077; cat > /root/job/pw", stdin=lab.password.encode())
    run = ["setsid", "-w", "sh", "-c", 'cd /root/job && exec "$@" </dev/null', "sh", FLEET, "setup-ssh"]
    done = lab.inside(first, *run, "--tofu", "--password-file", "pw", check=False)
    assert done.returncode == 0, done.stderr.decode()
    before = lab.sh(first, "ls -l --time-style=full-iso /root/.ssh; cat /root/.ssh/*")
    assert before.count(">>> fleet fleet-") == 2
    again = lab.inside(first, *run)
    assert b"nothing to change" in again.stdout and b"4 between hosts (each also with itself)" in again.stdout
    assert lab.sh(first, "ls -l --time-style=full-iso /root/.ssh; cat /root/.ssh/*") == before
    lab.inside(first, "ssh", "-o", "BatchMode=yes", lab.names[1], "true")
    undone = lab.inside(first, *run, "--undo", check=False)
    assert undone.returncode == 0, undone.stderr.decode()
    assert lab.sh(first, "ls -A /root/.ssh 2>/dev/null || true") == ""


# -- passwords --------------------------------------------------------------------------------------------
def test_a_wrong_password_is_tried_once_and_the_others_go_on(head: Head, tmp_path: Path) -> None:
    one, *others = head.lab.names
    file = tmp_path / "pw"
    file.write_text(f"{one} not-the-password\n* {head.lab.password}\n")
    file.chmod(0o600)
    done = head.fleet("setup-ssh", "--tofu", "--json", "--password-file", str(file))
    assert done.returncode == 122
    report = json.loads(done.stdout)
    assert report["hosts"][one]["error"]["kind"] == "auth"
    assert all(report["hosts"][name]["ok"] for name in others) and report["pairs"]["verified"] == 4
    assert logged(head.lab, one, "Failed password") == 1
    assert [logged(head.lab, name, "Failed password") for name in others] == [0, 0]
    assert "not-the-password" not in done.stdout + done.stderr


def test_no_terminal_and_no_password_file_is_a_clear_error(head: Head) -> None:
    done = head.fleet("setup-ssh", "--tofu")
    assert done.returncode == 122
    assert "no terminal to ask for the password" in done.stderr and "--password-file" in done.stderr
    assert [logged(head.lab, name, "Failed password") for name in head.lab.names] == [0] * 3


def test_the_password_is_found_nowhere(head: Head) -> None:
    head = head.first(1)
    password = head.lab.password
    seen: set[str] = set()
    looks = 0
    stop = threading.Event()

    def look() -> None:
        nonlocal looks
        while looks <= 3 or not stop.is_set():
            looks += 1
            for file in (*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")):
                try:
                    if password.encode() in file.read_bytes():
                        seen.add(str(file))
                except OSError:
                    continue

    watcher = threading.Thread(target=look)
    # a process that does hold it: the watcher must be able to find one
    leaky = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"LEAK": password})
    watcher.start()
    done = head.setup("--tofu", "--json", "-v")
    stop.set()
    watcher.join()
    leaky.communicate(b"\n")
    assert done.returncode == 0, done.stderr
    assert seen == {f"/proc/{leaky.pid}/environ"}
    assert password not in done.stdout + done.stderr
    for path in head.home.rglob("*"):
        assert not path.is_file() or password.encode() not in path.read_bytes(), path
    for name in head.lab.names:
        found = head.lab.inside(name, "grep", "-rlF", password, "/root/.ssh", "/var/log/sshd.log", "/tmp", check=False)
        assert found.stdout == b""


# -- host keys --------------------------------------------------------------------------------------------
@pytest.fixture
def swapped(head: Head) -> Iterator[tuple[Head, str, str]]:
    """(head, host, its fingerprint before): set up, then the host's key was swapped."""
    head = head.first(2)
    host = head.lab.names[1]
    assert head.setup("--tofu").returncode == 0
    old = fingerprint(head.lab, host)
    head.lab.swap_host_key(host)
    head.lab.sh(host, ": > /var/log/sshd.log")
    yield head, host, old


def test_a_swapped_host_key_is_refused_and_nothing_is_sent(swapped: tuple[Head, str, str]) -> None:
    head, host, old = swapped
    before = head.everything()
    for extra in ((), ("--tofu",)):
        report = head.report(*extra, code=122)
        error = report["hosts"][host]["error"]
        assert error["kind"] == "host-key" and f"--replace-key {host}" in error["hint"]
        assert old in error["message"] and fingerprint(head.lab, host) in error["message"]
    for word in ("Accepted", "Failed", "authenticating", "password"):
        assert logged(head.lab, host, word) == 0
    assert report["pairs"]["verified"] == 1
    after = head.everything()
    assert {k: v for k, v in after.items() if k != host} == {k: v for k, v in before.items() if k != host}


def test_replace_key_shows_both_and_replaces_everywhere(swapped: tuple[Head, str, str]) -> None:
    head, host, old = swapped
    new = fingerprint(head.lab, host)
    refused = head.setup("--replace-key", host)
    assert refused.returncode == 122 and old in refused.stderr and new in refused.stderr
    report = head.report("--replace-key", host, "--tofu")
    assert report["hosts"][host]["host_key"] == {"type": "ssh-ed25519", "fingerprint": new, "how": "replaced"}
    assert report["pairs"]["verified"] == 4
    assert head.fleet("setup-ssh", "--replace-key", host).stdout.startswith("nothing to change")
    for text in [
        (head.ssh / "known_hosts").read_text(),
        *(head.lab.sh(name, "cat /root/.ssh/known_hosts") for name in head.lab.names),
    ]:
        assert len([line for line in text.splitlines() if head.lab.address(host) in line]) == 1


def test_a_pinned_fingerprint_needs_no_confirmation_and_must_match(head: Head) -> None:
    head = head.first(2)
    one, two = head.lab.names
    wrong = "SHA256:" + "A" * 43
    fields = {name: {"host_key": fingerprint(head.lab, name)} for name in head.lab.names}
    head.write_inventory({**fields, two: {"host_key": wrong}})
    report = head.report(code=122)
    assert report["hosts"][one]["host_key"]["how"] == "pinned"
    error = report["hosts"][two]["error"]
    assert error["kind"] == "host-key" and wrong in error["message"] and fields[two]["host_key"] in error["message"]
    assert logged(head.lab, two, "password") == 0
    assert two not in (head.ssh / "known_hosts").read_text()
    head.write_inventory(fields)
    assert head.report()["pairs"]["verified"] == 4


def test_unknown_without_a_terminal_changes_nothing(head: Head) -> None:
    done = head.setup()
    assert done.returncode == 122
    for name in head.lab.names:
        assert fingerprint(head.lab, name) in done.stderr
        assert logged(head.lab, name, "Accepted") == 0
    kept = sorted(path.name for path in (head.home / ".fleet").iterdir())
    assert not head.ssh.exists()
    assert kept == ["failed", "password-files", "password-files.lock"], (
        "what -w @failed means, and which file no sync is to send"
    )


def test_on_a_terminal_keys_are_confirmed_and_the_password_is_typed(head: Head) -> None:
    head = head.first(2)
    argv = [FLEET, "-i", str(head.inventory), "setup-ssh"]
    env = {**head.lab.env, "HOME": str(head.home), "TERM": "xterm"}
    env.pop("CI", None)
    status, screen = on_terminal(argv, env, head.home, [("Type 'yes'", "no")])
    assert status == 122 and not head.ssh.exists()
    assert all(fingerprint(head.lab, name) in screen for name in head.lab.names)
    status, screen = on_terminal(argv, env, head.home, [("Type 'yes'", "\x03")])
    assert status == 130 and "Traceback" not in screen and not head.ssh.exists()
    status, screen = on_terminal(argv, env, head.home, [("Type 'yes'", "yes"), ("password for", "\x03")])
    assert status == 130 and "Traceback" not in screen
    status, screen = on_terminal(argv, env, head.home, [("password for", head.lab.password)])
    assert status == 0, screen
    assert screen.count("password for") == 1 and head.lab.password not in screen
    assert re.search(r"(^|\n|\x1b\[2K)password for", screen), "the question begins a line, whatever stood there before"
    assert "checking that every host reaches every other" in screen
    assert "4 between hosts (each also with itself)" in screen
