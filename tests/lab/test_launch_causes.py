"""What ended a run is named, not its victims: lease, killed supervisor or engine, full disk, the head's link."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.test_launch import (  # noqa: F401 (fixtures)
    COMMON,
    Launch,
    background,
    events,
    launch,
    left_on,
    ready,
    summary,
    until,
)
from tests.lab.virtual_lab import VirtualLab
from tests.leaders import leader_of

Background = Callable[..., subprocess.Popen[bytes]]
WHO = "import json, sys; who = json.load(open(sys.argv[1] + '/pid')); print(who['pid'], who['guardian']['pid'])"


def owners(lab: VirtualLab, host: str, folder: Path) -> tuple[str, str]:
    """The pids, as the host sees them, of a run's supervisor and guardian."""
    (run,) = [p.name for p in folder.glob("runs/*-*")]
    supervisor, guardian = lab.sh(host, f'python3 -c "{WHO}" ~/.fleet/runs/{run}').split()
    return supervisor, guardian


def ended(process: subprocess.Popen[bytes], folder: Path, lab: VirtualLab) -> tuple[int, dict[str, Any]]:
    """The exit code and the first failure, on screen, in the summary and in the events alike."""
    said = process.communicate(timeout=300)[1].decode()
    first = summary(folder)["first_failure"]
    assert f"failed: {first['message']}" in said and f"hint: {first['hint'].split(chr(39))[0]}" in said, said
    assert events(folder, "summary")[0]["first_failure"] == first
    assert first["exit_code"] == process.returncode
    until(lambda: not left_on(lab, folder))
    return process.returncode, first


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_killed_supervisor(both: bool, background: Background, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    process = background("./s.py", "sleep", "-1")
    victim = ready.names[2]
    supervisor, guardian = owners(ready, victim, tmp_path)
    ready.sh(victim, f"kill -9 {guardian if both else ''} {supervisor}")
    code, first = ended(process, tmp_path, ready)
    assert (code, first["what"], first["host"]) == (1, "supervisor", victim), first
    assert "supervisor of this run was killed" in first["message"] and victim in first["hint"]


def test_the_last_node_falls_silent(ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    """The others have ended, and tell that the head's own link is whole: nobody waits for the lease to pass."""
    first, second = ready.names[:2]
    for host in (first, second):
        line = "cat > /tmp/half.sh && chmod +x /tmp/half.sh"
        ready.inside(host, "sh", "-c", line, stdin=b'#!/bin/sh\n[ "$NODE_RANK" = 0 ] && exit 0\nexec sleep 600\n')
    words = ("-i", "lab", "-w", f"{first},{second}", "launch", "--nproc-per-node", "1", "--lease", "900")
    process = ready.popen(*words, "--node-timeout", "20", "--workdir", "/tmp", "/tmp/half.sh", cwd=tmp_path)
    try:
        until(
            lambda: any(event["host"] == first and event["state"] == "exited" for event in events(tmp_path, "status"))
        )
        ready.fleet("lab", "freeze", second, check=True)
        said = process.communicate(timeout=300)[1].decode()
    finally:
        process.kill()
        ready.fleet("lab", "heal", second, check=True)
    failure = summary(tmp_path)["first_failure"]
    assert (process.returncode, failure["host"], failure["what"]) == (122, second, "node"), said
    assert "silent for" in failure["message"] and not events(tmp_path, "alone"), said
    until(lambda: not left_on(ready, tmp_path))


def test_a_killed_engine(background: Background, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    process = background("./s.py", "sleep", "-1")
    victim = ready.names[1]
    supervisor, _ = owners(ready, victim, tmp_path)
    ready.sh(victim, f"kill -9 $(pgrep -P {supervisor})")
    code, first = ended(process, tmp_path, ready)
    assert (code, first["what"], first["host"], first["signal"]) == (137, "engine", victim, 9), first


@pytest.mark.slow
def test_a_supervisor_that_is_told_to_stop(background: Background, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    process = background("./s.py", "sleep", "-1")
    ready.sh(ready.names[2], f"kill {owners(ready, ready.names[2], tmp_path)[0]}")
    code, first = ended(process, tmp_path, ready)
    assert (code, first["what"], first["host"]) == (1, "signal", ready.names[2]), first


def test_a_lease_that_ran_out(background: Background, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    process = background("--lease", "6", "./s.py", "sleep", "-1")
    leader = leader_of(process.pid)
    os.kill(leader, signal.SIGSTOP)
    until(lambda: not left_on(ready, tmp_path))
    os.kill(leader, signal.SIGCONT)
    code, first = ended(process, tmp_path, ready)
    assert (code, first["what"]) == (124, "lease") and "the head sent nothing for 6 s" in first["message"], first


def test_this_machines_own_link(background: Background, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    process = background("--node-timeout", "10", "--lease", "20", "./s.py", "sleep", "-1")
    try:
        ready.fleet("lab", "cut", *ready.names, check=True)
        until(lambda: list(tmp_path.glob("runs/*-*/summary.json")))
    finally:
        ready.fleet("lab", "heal", *ready.names, check=True)
    code, first = ended(process, tmp_path, ready)
    assert (code, first["what"]) == (122, "link") and "all 3 nodes fell silent at once" in first["message"], first


@pytest.mark.slow
def test_a_full_disk_on_a_node(launch: Launch, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    victim = ready.names[1]
    ready.sh(victim, "mkdir -p ~/.fleet/runs && mount -t tmpfs -o size=1m tmpfs ~/.fleet/runs")
    try:
        done = launch("-w", victim, "./s.py", "flood", "200000")
    finally:
        ready.sh(victim, "umount -l ~/.fleet/runs")
    assert (done.returncode, summary(tmp_path)["first_failure"]) == (0, None), "it ends no rank"
    lost = {event["rank"]: event for event in events(tmp_path, "gap")}
    for out in tmp_path.glob("runs/*-*/*/rank*.out"):
        rank = int(out.stem[4:])
        lines = b"".join(b"rank %d line %d\rbar \xff\xfe\n" % (rank, i) for i in range(200000))
        here = out.stat().st_size + out.with_suffix(".err").stat().st_size
        assert here + lost[rank]["bytes"] == len(lines + b"no newline at the end") + 1000, "each byte is here, or named"
    assert lost and "the disk of ~/.fleet/runs is full there" in done.stderr
    assert f"exec -w {victim} -- df -h" in done.stderr, done.stderr


def test_a_rank_that_left_early_is_named(ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    line = (
        "test $RANK = 0 && exit 0; test $RANK = 3 || sleep 1000; until [ -e /root/left ]; do sleep 0.1; done; "
        'echo "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:9" >&2; exit 9'
    )
    process = ready.popen(*COMMON, "sh", "-c", line, cwd=tmp_path)
    until(lambda: events(tmp_path, "rank") or process.poll() is not None)
    ready.sh(ready.names[1], "touch /root/left")
    said = process.communicate(timeout=300)[1].decode()
    ready.sh(ready.names[1], "rm /root/left")
    first = summary(tmp_path)["first_failure"]
    assert process.returncode == 9 and first["rank"] == 3, said
    assert first["left_early"]["rank"] == 0 and first["left_early"]["host"] == ready.names[0]
    assert f"rank 0 on {ready.names[0]} had ended with exit code 0" in first["hint"] and first["why"] in first["hint"]


# a rank that puts itself into a cgroup of 64 MiB, whichever kind of them this kernel has, and asks for more
OUT_OF_MEMORY = """
test $RANK = 2 || exec sleep 1000
mkdir -p /root/cgroup && mount -t cgroup -o memory none /root/cgroup || mount -t cgroup2 none /root/cgroup
mkdir -p /root/cgroup/oom-$(hostname) && cd /root/cgroup/oom-$(hostname)  # all hosts of this machine see it
echo 67108864 > memory.limit_in_bytes || echo 67108864 > memory.max
echo $$ > cgroup.procs
exec python3 -c "rows = b'1' * (1 << 30)"
"""


def test_the_kernels_word_for_a_rank_that_had_no_memory(launch: Launch, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    victim = ready.names[1]
    try:
        done = launch("sh", "-c", OUT_OF_MEMORY)
        first = summary(tmp_path)["first_failure"]
    finally:
        ready.sh(victim, "rmdir /root/cgroup/oom-$(hostname); umount /root/cgroup")
    assert (done.returncode, first["rank"]) == (137, 2), first
    assert "out of memory: the kernel killed python3, the limit of its cgroup was reached" in first["why"]
    assert (
        f"why: {first['why']}" in done.stderr
        and first["kernel"]["host"] == victim
        and "Killed process" in first["kernel"]["line"]
    ), first
    assert f"kernel of {victim}: {first['kernel']['line']}" in done.stderr


@pytest.mark.slow
def test_a_host_key_that_changed_meanwhile(background: Background, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    victim = ready.names[2]
    ready.sh(victim, "mkdir -p /root/keys && cp -p /etc/ssh/ssh_host_* /root/keys")
    key = "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub | cut -d' ' -f2"
    before = ready.sh(victim, key)
    process = background("--lease", "10", "./s.py", "sleep", "-1")
    try:
        ready.swap_host_key(victim)
        ready.sh(victim, "pkill -f '^sshd: root@'")
        code = process.wait(300)
        first, said = summary(tmp_path)["first_failure"], process.communicate()[1].decode()
        after = ready.sh(victim, key)
    finally:
        ready.stop_sshd(victim)
        ready.sh(victim, "cp -p /root/keys/* /etc/ssh/")
        ready.start_sshd(victim)
    assert code == 122 and before != after
    for text in (first["message"], events(tmp_path, "lost")[0]["message"], said):
        assert before in text and after in text and victim in text, text
    assert events(tmp_path, "lost")[0]["kind"] == "host-key" and "--replace-key" in first["hint"]
    until(lambda: not left_on(ready, tmp_path))


@pytest.mark.slow
def test_a_node_that_lets_nobody_in_again(background: Background, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    victim = ready.names[1]
    process = background("--node-timeout", "10", "--lease", "25", "./s.py", "sleep", "-1")
    ready.stop_sshd(victim)
    try:
        ready.sh(victim, "pkill -9 -f '^sshd: root@notty'")
        code, first = ended(process, tmp_path, ready)
    finally:
        ready.start_sshd(victim)
    assert (code, first["what"], first["host"]) == (122, "node", victim)
    assert re.search(r"silent for \d+ s: .*port 22 refused the connection", first["message"]), first
