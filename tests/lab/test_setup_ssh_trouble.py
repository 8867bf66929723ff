"""setup-ssh where something is wrong on a node or on the head: said in its own words, with the line that mends it."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.private_sshd import hung_agent
from tests.lab.setup_ssh_tools import Head
from tests.lab.test_launch import until
from tests.lab.virtual_lab import FLEET


# -- the head's agent -------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_hung_agent_is_left_out_with_a_word_or_named_where_it_is_needed(head: Head, tmp_path: Path) -> None:
    head = head.first(2)
    env = {"SSH_AUTH_SOCK": str(tmp_path / "agent")}
    with hung_agent(tmp_path / "agent", "accepts"):
        done = head.setup("--tofu", "--connect-timeout", "20", env=env)
        assert done.returncode == 0, done.stderr
        assert f"the ssh-agent at {tmp_path}/agent does not answer" in done.stderr and "4 between hosts" in done.stdout
        key = head.ssh / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True)
        done = head.setup("--connect-timeout", "20", env=env)
    assert done.returncode == 122
    assert "has a passphrase, and the ssh-agent at" in done.stderr and "unset SSH_AUTH_SOCK" in done.stderr


# -- the nodes' homes -------------------------------------------------------------------------------------
@pytest.fixture
def open_home(head: Head) -> Iterator[str]:
    host = head.lab.names[1]
    yield host
    head.lab.sh(host, "chmod 700 /root")


def test_a_home_that_others_can_write_to_is_named_with_the_line_that_mends_it(head: Head, open_home: str) -> None:
    head = head.first(2)
    one, two = head.lab.names
    head.lab.sh(two, "chmod 777 /root")
    done = head.setup("--tofu", "--json")
    assert done.returncode == 122, done.stderr
    report = json.loads(done.stdout)
    error = report["hosts"][two]["error"]
    assert "others can write to the home /root" in error["message"] and "StrictModes" in error["message"]
    assert error["hint"] == f"ssh root@{head.lab.address(two)} chmod go-w /root, then run this again"
    assert head.lab.sh(two, "stat -c %a /root") == "777"  # never silently
    assert report["pairs"]["verified"] == 1 and report["hosts"][one]["ok"]
    # plain ssh is led to those that work, and to nothing else
    for block in ((head.ssh / "config").read_text(), head.lab.sh(one, "cat /root/.ssh/config")):
        assert f"Host {one}\n" in block and two not in block
    head.lab.sh(two, "chmod go-w /root")
    done = head.fleet("setup-ssh")  # and no password any more
    assert done.returncode == 0 and "4 between hosts" in done.stdout, done.stderr


def test_a_home_that_its_group_can_write_to(head: Head, open_home: str) -> None:
    """Debian's sshd lets that pass where the group is the user's own; the user hears of it."""
    head = head.first(2)
    head.lab.sh(open_home, "chmod 775 /root")
    done = head.setup("--tofu")
    assert "chmod go-w /root" in done.stderr and "Error" not in done.stderr, done.stderr
    assert done.returncode in (0, 122)


@pytest.mark.parametrize("room", ["none", pytest.param("for the key", marks=pytest.mark.slow)])
def test_a_full_disk_below_ssh_is_named_and_the_others_go_on(head: Head, room: str) -> None:
    one, two, three = head.lab.names
    fill = (
        "cat /dev/zero >/root/.ssh/filler 2>/dev/null"
        if room == "none"
        else (
            "head -c 8192 /dev/zero >/root/.ssh/filler; for i in 1 2; do ln /root/.ssh/filler /root/.ssh/filler$i; done"
        )
    )
    mount = "mkdir -m 700 /root/.ssh && mount -t tmpfs -o size=16k,mode=700 none /root/.ssh; "
    head.lab.sh(two, mount + fill, check=False)
    try:
        report = head.report("--tofu", code=1)
    finally:
        head.lab.sh(two, "umount /root/.ssh; rmdir /root/.ssh")
    error = report["hosts"][two]["error"]
    assert "/root/.ssh/" in error["message"] and "No space left on device" in error["message"]
    assert "df -h ~/.ssh" in error["hint"]
    assert report["hosts"][one]["ok"] and report["hosts"][three]["ok"] and report["pairs"]["verified"] == 4
    # it is on record, and no key lets the head in: undo asks for the password as well
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 122 and "--password-file" in done.stderr
    assert head.setup("--undo").returncode == 0 and not list(head.ssh.glob("*"))


@pytest.mark.slow
def test_a_node_without_ssh_keygen_is_reached_and_left_out_of_the_mesh(head: Head) -> None:
    head = head.first(2)
    one, two = head.lab.names
    head.lab.sh(two, "mount --bind /dev/null /usr/bin/ssh-keygen")
    try:
        done = head.setup("--tofu", "--json")
        again = head.fleet("setup-ssh", "--no-mesh")
    finally:
        head.lab.sh(two, "umount /usr/bin/ssh-keygen")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    error = report["hosts"][two]["error"]
    assert "it has no key of its own: ssh-keygen is not installed" in error["message"]
    assert "apt-get install openssh-client" in error["hint"] and "--no-mesh" in error["hint"]
    assert report["pairs"]["from_head"] == 2 and report["pairs"]["verified"] == 2  # also to it
    assert {p["from"] for p in report["pairs"]["failed"]} == {two}
    assert again.returncode == 0, again.stderr
    assert head.report()["pairs"]["verified"] == 4  # it is back


# -- killed, and two at once ------------------------------------------------------------------------------
def start(head: Head, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [FLEET, "-i", str(head.inventory), "setup-ssh", "--password-file", str(head.lab.password_file), *args],
        env={**head.lab.env, "HOME": str(head.home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


STEPS = {
    "keys made": lambda head: (head.ssh / "id_ed25519.pub").exists(),
    "on a node": lambda head: head.lab.sh(
        head.lab.names[0], "ls -d /root/.ssh/.fleet-key* /root/.ssh/id_ed25519* 2>/dev/null || true"
    ),
    "authorised": lambda head: head.lab.sh(head.lab.names[0], "cat /root/.ssh/authorized_keys 2>/dev/null || true"),
    "mesh": lambda head: head.lab.sh(head.lab.names[0], "cat /root/.ssh/config 2>/dev/null || true"),
    "block": lambda head: (head.ssh / "config").exists(),
}


@pytest.mark.parametrize(
    "step", [step if step == "authorised" else pytest.param(step, marks=pytest.mark.slow) for step in STEPS]
)
def test_killed_at_any_step_it_leaves_nothing_that_misleads(head: Head, step: str) -> None:
    head = head.first(2)
    lab = head.lab
    process = start(head, "--tofu")
    deadline = time.monotonic() + 300
    while not STEPS[step](head) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    block = (head.ssh / "config").read_text() if (head.ssh / "config").exists() else ""
    for name in lab.names:  # plain ssh is led nowhere but where it is let in
        assert name not in block or head.plain_ssh(name, "true").returncode == 0
    # what was under way on the nodes comes to its end
    until(lambda: not any(lab.sh(name, "ls -A /root/.ssh 2>/dev/null | grep fleet- || true") for name in lab.names))
    assert head.report("--tofu")["pairs"]["verified"] == 4
    assert not list(head.ssh.glob(".fleet*"))
    assert head.fleet("setup-ssh", "--undo").returncode == 0
    assert "Host" not in "".join(path.read_text() for path in head.ssh.glob("config"))


def test_what_a_node_left_that_went_down_is_swept_out(head: Head) -> None:
    head = head.first(2)
    one = head.lab.names[0]
    head.lab.sh(
        one,
        "mkdir -m 700 /root/.ssh; cd /root/.ssh; ssh-keygen -q -t ed25519 -N '' -f id_ed25519; "
        "gone=.fleet-key.4000000.$(uname -n); ln id_ed25519 $gone; cp id_ed25519.pub $gone.pub; "
        "touch .fleet-key.$$.elsewhere .fleet.4000000.$(uname -n)",
    )
    assert head.setup("--tofu").returncode == 0
    left = head.lab.sh(one, "ls -A /root/.ssh | grep '^.fleet'").split()
    assert len(left) == 1 and left[0].endswith(".elsewhere")  # a shared home: that node may be at work


@pytest.mark.slow
def test_undo_killed_in_the_middle_finishes_the_next_time(head: Head) -> None:
    head = head.first(2)
    lab = head.lab
    assert head.setup("--tofu").returncode == 0
    process = start(head, "--undo")
    deadline = time.monotonic() + 300
    while lab.sh(lab.names[0], "ls -A /root/.ssh 2>/dev/null || true") and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = head.fleet("setup-ssh", "--undo")
    assert done.returncode == 0 or "nothing to undo" in done.stderr, done.stderr
    assert [lab.sh(name, "ls -A /root/.ssh 2>/dev/null || true") for name in lab.names] == ["", ""]
    assert not list(head.ssh.glob("*"))


def test_two_at_once_take_turns_also_for_different_inventories(head: Head) -> None:
    head = head.first(1)
    other = Head(head.lab, head.home, head.inventory.with_name("other.yaml"))
    other.inventory.write_text(head.inventory.read_text())
    waiting = b"waiting: another setup-ssh is under way on this machine (process 4711, for /elsewhere/fleet.yaml)"
    lock = head.home / ".cache/fleet/locks/setup-ssh"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("process 4711, for /elsewhere/fleet.yaml")
        held.flush()
        both = [start(each, "--tofu") for each in (head, other)]
        heard = [b"", b""]

        def both_wait() -> bool:
            for number, process in enumerate(both):
                assert process.poll() is None and process.stderr, heard
                if select.select([process.stderr], [], [], 0)[0]:
                    heard[number] += os.read(process.stderr.fileno(), 1 << 16)
            return all(waiting in err for err in heard)

        until(both_wait)
        time.sleep(1)
        assert [process.poll() for process in both] == [None, None]
        assert not head.ssh.exists()
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    text = (head.ssh / "config").read_text()
    assert text.count(">>> fleet") == 2 and head.report()["changed"] is False and other.report()["changed"] is False


def test_the_wait_for_another_one_is_bounded(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    from fleet.errors import DeadlineError
    from fleet.ops.cache import turn
    from fleet.runtime import Runtime
    from fleet.transport.local import LocalTransport

    monkeypatch.setenv("XDG_CACHE_HOME", str(head.home))
    with turn("setup-ssh", "another setup-ssh", Runtime(LocalTransport()), holder="for x.yaml"):  # noqa: SIM117
        with pytest.raises(DeadlineError, match=f"process {os.getpid()}, for x.yaml"):
            with turn("setup-ssh", "another setup-ssh", Runtime(LocalTransport()), within=0.3):
                pass
    assert not (head.home / "fleet/locks/setup-ssh").exists()


def test_a_key_whose_head_died_before_it_heard_of_it_goes_at_undo(head: Head) -> None:
    head = head.first(2)
    lab = head.lab
    process = start(head, "--tofu")
    deadline = time.monotonic() + 300
    while not STEPS["on a node"](head) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: not any(lab.sh(name, "ls -A /root/.ssh 2>/dev/null | grep fleet || true") for name in lab.names))
    done = head.setup("--undo")
    assert done.returncode == 0, done.stderr
    assert [lab.sh(name, "ls -A /root/.ssh 2>/dev/null || true") for name in lab.names] == ["", ""]


def test_undo_looks_and_changes_with_one_password_where_no_key_is_let_in(head: Head) -> None:
    head = head.first(2)
    lab = head.lab
    assert head.setup("--tofu", "--no-mesh").returncode == 0
    for name in lab.names:
        lab.sh(name, ": > /root/.ssh/authorized_keys")
    assert "--password-file" in head.fleet("setup-ssh", "--undo").stderr
    done = head.setup("--undo")
    assert done.returncode == 0, done.stderr
    assert [lab.sh(name, "ls -A /root/.ssh 2>/dev/null || true") for name in lab.names] == ["", ""]
