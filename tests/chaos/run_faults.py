"""Runs that outlive their head, its link, and what is done to them when they are left to themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.ground import COMMON, Ground, Unexpected, until, wait
from tests.chaos.head_faults import disk_of_2_mb
from tests.chaos.node_faults import LOGS, WHOLE, freeze_5, kill_follower, restart_sshd, survived
from tests.chaos.rank_faults import ended
from tests.chaos.table import Fault, Seen

COUNT = ("./ranks.py", "count")
LONG = 2500  # steps, of 10 ms at least


def detach(ground: Ground, *argv: str, count: int = 8) -> None:
    """A run that is left to itself at once; its logs come here all the same."""
    ground.fleet(*COMMON, "--detach", *argv, check=True)
    until(lambda: len([p for p in ground.run().glob("*/rank*.out") if p.stat().st_size]) >= count, "ranks to write")


def outcome(ground: Ground) -> Seen:
    """Of a run that another process follows to its end."""
    until(lambda: (ground.run() / "summary.json").exists(), "summary.json", 80)
    return ended(ground, ground.summary()["exit_code"])


def left_alone(act: Callable[[Ground], None], steps: int = 600) -> Callable[[Ground], Seen]:
    """As survived(), of a run without a terminal."""

    def go(ground: Ground) -> Seen:
        detach(ground, *COUNT, str(steps))
        act(ground)
        seen = outcome(ground)
        return Seen(seen.code, seen.cause, ground.counted(steps))

    return go


def attach(ground: Ground, steps: int) -> Seen:
    done = ground.fleet("-i", "lab", "attach", "latest")
    seen = ended(ground, done.returncode)
    return Seen(seen.code, seen.cause, ground.counted(steps))


def short_lease(ground: Ground) -> Seen:
    """No fault at all: the head renews the lease in time, also the shortest there is."""
    seen = ended(ground, wait(ground.launch("--lease", "1", *COUNT, "500")))
    return Seen(seen.code, seen.cause, ground.counted(500))


def taken_up(ground: Ground) -> Seen:
    """Nobody renews the lease for some seconds, in which the ranks go on."""
    process = ground.launch("--lease", "40", *COUNT, "1000")
    process.send_signal(signal.SIGKILL)
    wait(process)
    time.sleep(3)
    return attach(ground, 1000)


def leaders(ground: Ground) -> list[int]:
    """The leaders of detached runs."""
    return [int(words.split()[0]) for words in ground.head_processes() if " launch " in words]


def leader_killed(ground: Ground) -> Seen:
    detach(ground, *COUNT, "1000")
    for pid in leaders(ground):
        os.kill(pid, signal.SIGKILL)
    time.sleep(2)
    return attach(ground, 1000)


def cut_all_20(ground: Ground) -> None:
    """The head's own link."""
    ground.lame("cut", *ground.names)
    time.sleep(20)
    ground.heal(*ground.names)


def flap(ground: Ground) -> None:
    for _ in range(4):  # shorter than --node-timeout in all: one that never gets through in between is lost
        ground.lame("cut", ground.names[1])
        time.sleep(2)
        ground.heal(ground.names[1])
        time.sleep(1)


def pause_30(ground: Ground) -> None:
    (process,) = (int(words.split()[0]) for words in ground.head_processes() if " launch " in words)
    os.kill(process, signal.SIGSTOP)
    time.sleep(30)
    os.kill(process, signal.SIGCONT)


def owners_killed(ground: Ground) -> Seen:
    detach(ground, *COUNT, "100000")
    host = ground.names[2]
    ground.lab.sh(host, "kill -9 {} {}".format(*reversed(ground.owners(host))))
    return outcome(ground)


def head_full(ground: Ground) -> Seen:
    disk = disk_of_2_mb(ground)
    detach(ground, *COUNT, "1500")
    until(lambda: '"blocked"' in (ground.run() / "events.jsonl").read_text(), "no room")
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    seen = outcome(ground)
    return Seen(seen.code, seen.cause, ground.counted(1500))


def node_full(ground: Ground) -> Seen:
    """One of four; what its ranks write then is lost, and named."""
    victim = ground.names[1]
    ground.lab.sh(victim, "mkdir -p ~/.fleet/runs && mount -t tmpfs -o size=1m tmpfs ~/.fleet/runs")
    ground.undo.callback(ground.lab.sh, victim, "umount -l ~/.fleet/runs")
    return ended(ground, wait(ground.launch(*COUNT, str(LONG))))


def stopped_unreachable(ground: Ground) -> Seen:
    """Two nodes are cut when the run is stopped: a process of this machine ends it there, when they are back."""
    detach(ground, *COUNT, "100000")
    far = ground.names[2:]
    ground.lame("cut", *far)
    done = ground.fleet("-i", "lab", "--connect-timeout", "3", "stop", "latest")
    told = " ".join(line for line in done.stderr.splitlines() if "hint:" not in line)
    ground.heal(*far)
    until(lambda: not ranks(ground), "the ranks to end", 60)
    until(lambda: ground.log_digests() == LOGS, "the rest of the logs", 40)
    return Seen(done.returncode, told, ground.log_digests())


def ranks(ground: Ground) -> list[str]:
    return [host for host in ground.names if any("ranks.py" in line for line in ground.processes(host))]


def stop_one_of_two(ground: Ground) -> Seen:
    """`fleet stop` ends the run that it names; the other one on the same hosts goes on to its end."""
    other = Path(ground.folder, "other")
    other.mkdir()
    process = ground.launch("--name", "stops", "./ranks.py", "sleep", cwd=other)
    going = ground.launch("--share", "--name", "stays", *COUNT, "1000")
    stop = ground.fleet("-i", "lab", "stop", "--runs-dir", str(other / "runs"), "stops")
    stopped = wait(process)
    seen = ended(ground, wait(going))
    return Seen(
        seen.code,
        f"stop {stop.returncode}, the stopped one {stopped}; the other {seen.cause}",
        f"{ground.counted(1000)}; {ground.log_digests(other)}",
    )


def replaced(detached: bool) -> Callable[[Ground], Seen]:
    """A node is frozen for good. A spare takes its place, and the ranks go on from their checkpoints."""
    argv = ("--spares", "1", "--node-timeout", "4", "--lease", "20", "./ranks.py", "resume", "1500")

    def go(ground: Ground) -> Seen:
        victim = ground.names[1]
        ground.undo.callback(lambda: [ground.lab.sh(host, "rm -f /root/saved-*") for host in ground.names])
        process = None if detached else ground.launch(*argv, count=6)
        if detached:
            detach(ground, *argv, count=6)
        time.sleep(2)
        ground.lame("freeze", victim)
        seen = ended(ground, wait(process)) if process else outcome(ground)
        begins = [resumed(ground, rank, 1500) for rank in range(6)]
        went_on = sum(begin > 0 for begin in begins)
        ground.heal(victim)
        until(lambda: [e for e in ground.events() if e["event"] == "cleaned"], "the frozen node to be cleaned", 40)
        found = [e["replaced"] for e in ground.events() if e["event"] == "restart"]
        instead = " ".join(f"{host} replaced: {why}" for each in found for host, why in each.items())
        return Seen(
            seen.code,
            f"{seen.cause}; {instead}",
            f"{went_on} went on, {6 - went_on} began again; {ground.log_digests()}",
        )

    return go


def resumed(ground: Ground, rank: int, steps: int) -> int:
    """The first line of a rank's last attempt, of which each line up to the last one must be there, once."""
    (log,) = ground.run().glob(f"*/rank{rank}.out")
    lines = log.read_text().splitlines()
    begin = int(lines[0].split()[-1])
    if lines != [f"rank {rank} line {step}" for step in range(begin, steps)]:
        raise Unexpected(f"{log} is not whole")
    return begin


BACK = "^all well dropped resumed"
SUPERVISOR = "^supervisor on lab03: .*supervisor of this run was killed"
REPLACED, WENT_ON = "^all well.* lab02 replaced: .*silent", f"4 went on, 2 began again; {LOGS}"
FAULTS = (
    Fault("a lease of 1 s is renewed", short_lease, 0, "^all well", WHOLE),
    Fault("the head is killed -9, attached within the lease", taken_up, 0, "^all well", WHOLE),
    Fault("the head's link is cut for 20 s", survived(cut_all_20, LONG), 0, BACK, WHOLE),
    Fault("the head is stopped for 30 s", survived(pause_30, 3500), 0, "^all well", WHOLE),
    Fault("a node's link flaps", survived(flap, LONG), 0, "^all well", WHOLE),
    Fault(
        "a node is frozen for good, a spare takes its place",
        replaced(detached=False),
        0,
        REPLACED,
        WENT_ON,
        settle=60,
    ),
    Fault(
        "detached: a node is frozen for good, a spare takes its place",
        replaced(detached=True),
        0,
        REPLACED,
        WENT_ON,
        settle=60,
    ),
    Fault("one of four disks is full", node_full, 0, "^all well gap", LOGS),
    Fault(
        "two runs, 'fleet stop' of one",
        stop_one_of_two,
        0,
        "^stop 0, the stopped one 130; the other all well",
        f"{WHOLE}; {LOGS}",
    ),
    Fault("detached: the leader is killed -9, attached", leader_killed, 0, "^all well", WHOLE),
    Fault("detached: the head's link is cut for 20 s", left_alone(cut_all_20, LONG), 0, BACK, WHOLE),
    Fault("detached: a node's link flaps", left_alone(flap, LONG), 0, "^all well", WHOLE),
    Fault("detached: a node's follower is killed -9", left_alone(kill_follower), 0, "^all well .*resumed", WHOLE),
    Fault("detached: a node's sshd is restarted", left_alone(restart_sshd), 0, BACK, WHOLE),
    Fault("detached: a node is frozen for 5 s", left_alone(freeze_5, 1000), 0, "^all well", WHOLE),
    Fault("detached: a supervisor and its guardian are killed -9", owners_killed, 1, SUPERVISOR, LOGS),
    Fault("detached: the head's disk is full, then freed", head_full, 0, "^all well blocked unblocked", WHOLE),
    Fault(
        "detached: stopped while two nodes are cut",
        stopped_unreachable,
        122,
        r"stops them and brings.*lab\[03-04\]: no answer",
        LOGS,
        settle=60,
    ),
)
