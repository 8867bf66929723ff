"""What befalls the head, or its terminal, while a run goes on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.ground import COMMON, Ground, until, wait
from tests.chaos.node_faults import LOGS, WHOLE, survived
from tests.chaos.rank_faults import ended, interrupted
from tests.chaos.table import Fault, Seen
from tests.leaders import leader_of


def pause_5(ground: Ground) -> None:
    process = max(int(p.split()[0]) for p in ground.head_processes() if " launch " in p)  # its leader
    os.kill(process, signal.SIGSTOP)
    time.sleep(5)
    os.kill(process, signal.SIGCONT)


def paused_beyond_lease(ground: Ground) -> Seen:
    process = ground.launch("--lease", "3", "./ranks.py", "sleep")
    leader = leader_of(process.pid)
    os.kill(leader, signal.SIGSTOP)
    until(lambda: not ranks(ground), "the lease to end the ranks")
    os.kill(leader, signal.SIGCONT)
    return ended(ground, wait(process))


def ranks(ground: Ground) -> list[str]:
    return [host for host in ground.names if any("ranks.py" in line for line in ground.processes(host))]


def by_lease(signum: int, stays: float = 1.0) -> Callable[[Ground], Seen]:
    """The head goes without a word: the nodes go on for the lease, and say themselves what ended them."""

    def go(ground: Ground) -> Seen:
        process = ground.launch("--lease", "5", "./ranks.py", "sleep")
        process.send_signal(signum)
        code = wait(process)
        time.sleep(stays)
        stayed = len(ranks(ground))
        until(lambda: not ranks(ground), "the lease to end the ranks")
        path = f"/root/.fleet/runs/{ground.run().name}/status.json"
        until(lambda: '"stopped"' in ground.lab.sh(ground.names[1], f"cat {path}"), "a last status")
        status = ground.lab.sh(ground.names[1], f"cat {path}")
        return Seen(code, f"{stayed} hosts went on; then {status}", ground.log_digests())

    return go


def disk_of_2_mb(ground: Ground) -> Path:
    """Where the head's logs go."""
    disk = ground.folder / "runs"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True)
    ground.undo.callback(lambda: subprocess.run(["umount", "-l", disk], check=True))
    return disk


def full_disk(ground: Ground) -> Seen:
    """The head's disk is full, then there is room: the logs wait and are whole."""
    disk = disk_of_2_mb(ground)
    process = ground.launch("./ranks.py", "flood", "40000", count=1)
    until(lambda: '"blocked"' in (ground.run() / "events.jsonl").read_text() or process.poll() is not None, "no room")
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    return ended(ground, wait(process))


def deaf_terminal(ground: Ground) -> Seen:
    """Nobody drains the terminal (Ctrl-S); one Ctrl-C still ends the run."""
    head, terminal = os.openpty()
    ground.undo.callback(os.close, head)
    ground.undo.callback(os.close, terminal)
    process = ground.start(
        *COMMON, "./ranks.py", "forever", stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    until(lambda: list(ground.folder.glob("runs/*-*/*/rank7.out")), "the ranks")
    until(lambda: not select.select([], [terminal], [], 0)[1], "a full terminal")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    code = wait(process)
    summary = ground.summary()
    return Seen(code, f"stopped: {summary['stopped']}", ground.log_digests())


STOPPED = "^stopped: interrupted"
LEASE = '^4 hosts went on; then .*"cause": "lease"'
SLEEP = ("./ranks.py", "sleep")
FAULTS = (
    Fault("Ctrl-C", interrupted(*SLEEP), 130, STOPPED, LOGS),
    Fault(
        "Ctrl-C twice, ranks ignore SIGTERM",
        interrupted("./ranks.py", "stubborn", times=2, grace="60"),
        130,
        STOPPED,
        LOGS,
    ),
    Fault("SIGTERM to the head", interrupted(*SLEEP, signum=signal.SIGTERM), 130, STOPPED, LOGS),
    Fault("SIGHUP to the head", by_lease(signal.SIGHUP), 129, LEASE, LOGS),
    Fault("the head is killed -9", by_lease(signal.SIGKILL), -9, LEASE, LOGS),
    Fault("the head is stopped for 5 s", survived(pause_5), 0, "^all well", WHOLE),
    Fault(
        "the head is stopped beyond the lease",
        paused_beyond_lease,
        124,
        "^lease on lab0.: .*the head sent nothing for 3 s",
        LOGS,
    ),
    Fault("the head's disk is full, then freed", full_disk, 0, "^all well blocked unblocked", LOGS),
    Fault("nobody drains the terminal, Ctrl-C", deaf_terminal, 130, STOPPED, LOGS),
)
