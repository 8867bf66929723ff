"""What befalls a node, or fleet's own programs on it, while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.chaos.ground import Ground, until, wait
from tests.chaos.rank_faults import ended
from tests.chaos.table import Fault, Seen

STEPS = 500  # of 10 ms at least
FOLLOWER = "for p in $(pgrep -f '^sshd: root@notty'); do pkill -9 -P $p; done"
KEY = "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub | cut -d' ' -f2"


def on_node(line: str, node: int = 2, ranks: Sequence[str] = ("count", "100000")) -> Callable[[Ground], Seen]:
    """A shell line on a node whose ranks count; {supervisor} and {guardian} are their pids."""

    def go(ground: Ground) -> Seen:
        process = ground.launch("./ranks.py", *ranks)
        host = ground.names[node]
        supervisor, guardian = ground.owners(host)
        ground.lab.sh(host, line.format(supervisor=supervisor, guardian=guardian))
        return ended(ground, wait(process))

    return go


def survived(act: Callable[[Ground], None], steps: int = STEPS) -> Callable[[Ground], Seen]:
    """Ranks write lines while act does something that the run must outlive: each line is there, once."""

    def go(ground: Ground) -> Seen:
        process = ground.launch("./ranks.py", "count", str(steps))
        act(ground)
        seen = ended(ground, wait(process))
        return Seen(seen.code, seen.cause, ground.counted(steps))

    return go


def kill_guardian(ground: Ground) -> None:
    ground.lab.sh(ground.names[2], f"kill -9 {ground.owners(ground.names[2])[1]}")


def kill_follower(ground: Ground) -> None:
    ground.lab.sh(ground.names[1], FOLLOWER, check=False)


def kill_sessions(ground: Ground) -> None:
    for _ in range(2):
        ground.lab.sh(ground.names[1], "pkill -9 -f '^sshd: root@notty'")
        time.sleep(1.5)


def restart_sshd(ground: Ground) -> None:
    ground.lab.stop_sshd(ground.names[1])
    ground.lab.start_sshd(ground.names[1])
    ground.lab.sh(ground.names[1], "pkill -f '^sshd: root@notty'")


def stop_sshd(ground: Ground) -> None:
    """Its open sessions stay."""
    ground.undo.callback(ground.lab.start_sshd, ground.names[1])
    ground.lab.stop_sshd(ground.names[1])


def freeze_5(ground: Ground) -> None:
    ground.lame("freeze", ground.names[2])
    time.sleep(5)
    ground.heal(ground.names[2])


def cut_3(ground: Ground) -> None:
    ground.lame("cut", ground.names[2])
    time.sleep(3)
    ground.heal(ground.names[2])


def sshd_gone(ground: Ground) -> Seen:
    """No way back to the node: the port is refused and its sessions are dead."""
    process = ground.launch("--node-timeout", "4", "--lease", "10", "./ranks.py", "sleep")
    stop_sshd(ground)
    ground.lab.sh(ground.names[1], "pkill -9 -f '^sshd: root@notty'")
    return ended(ground, wait(process))


def silent(how: str) -> Callable[[Ground], Seen]:
    """A node that is cut or frozen for longer than --node-timeout, healed afterwards: its log's tail comes, too."""

    def go(ground: Ground) -> Seen:
        victim = ground.names[3]
        process = ground.launch("--node-timeout", "4", "--lease", "30", "./ranks.py", "count", "4000")
        ground.lame(how, victim)
        code = wait(process)
        seen = ended(ground, code)
        ground.heal(victim)
        until(lambda: [e for e in ground.events() if e["event"] == "cleaned"], "the node to be cleaned", 40)
        until(lambda: ground.summary()["incomplete_logs"] == [], "the log's tail", 20)
        return Seen(code, seen.cause, ground.log_digests())

    return go


def powered_off(ground: Ground) -> Seen:
    process = ground.launch("--node-timeout", "4", "--lease", "8", "./ranks.py", "sleep")
    ground.power_off(ground.names[3])
    return ended(ground, wait(process))


def all_cut(ground: Ground) -> Seen:
    process = ground.launch("--node-timeout", "4", "--lease", "8", "./ranks.py", "sleep")
    ground.lame("cut", *ground.names)
    time.sleep(12)
    ground.heal(*ground.names)
    return ended(ground, wait(process))


def swapped_key(ground: Ground) -> Seen:
    """The host's key changes under a run, and its connection ends; both fingerprints are told."""
    victim, lab = ground.names[2], ground.lab
    lab.sh(victim, "mkdir -p /mnt/keys && cp -p /etc/ssh/ssh_host_* /mnt/keys")

    def back() -> None:
        lab.stop_sshd(victim)
        lab.sh(victim, "cp -p /mnt/keys/* /etc/ssh/")
        lab.start_sshd(victim)

    ground.undo.callback(back)
    before = lab.sh(victim, KEY)
    process = ground.launch("--lease", "10", "./ranks.py", "sleep")
    lab.swap_host_key(victim)
    lab.sh(victim, "pkill -f '^sshd: root@'")
    seen = ended(ground, wait(process))
    cause = seen.cause.replace(before, "OLD-KEY").replace(lab.sh(victim, KEY), "NEW-KEY")
    return Seen(seen.code, cause, seen.digests)


def full_disk(ground: Ground) -> Seen:
    victim = ground.names[1]
    ground.lab.sh(victim, "mkdir -p ~/.fleet/runs && mount -t tmpfs -o size=1m tmpfs ~/.fleet/runs")
    ground.undo.callback(ground.lab.sh, victim, "umount -l ~/.fleet/runs")
    process = ground.launch("-w", victim, "./ranks.py", "flood", "200000", count=1)
    seen = ended(ground, wait(process))
    return Seen(seen.code, seen.cause, "-")


LOGS = "logs equal"
WHOLE = "logs equal, whole"
FAULTS = (
    Fault("an engine is killed -9", on_node("kill -9 $(pgrep -P {supervisor})"), 137, "^engine on lab03", LOGS),
    Fault(
        "a supervisor is killed -9",
        on_node("kill -9 {supervisor}"),
        1,
        "^supervisor on lab03: .*supervisor of this run was killed",
        LOGS,
    ),
    Fault(
        "a supervisor and its guardian are killed -9",
        on_node("kill -9 {guardian} {supervisor}"),
        1,
        "^supervisor on lab03: .*supervisor of this run was killed",
        LOGS,
    ),
    Fault(
        "both are killed -9, ranks left daemons without an environment",
        on_node("kill -9 {guardian} {supervisor}", ranks=("hidden",)),
        1,
        "^supervisor on lab03: .*supervisor of this run was killed",
        LOGS,
    ),
    Fault("a supervisor is sent TERM", on_node("kill {supervisor}"), 1, "^signal on lab03: ", LOGS),
    Fault("a guardian is killed -9", survived(kill_guardian), 0, "^all well", WHOLE),
    Fault("a node's follower is killed -9", survived(kill_follower), 0, "^all well .*resumed", WHOLE),
    Fault("a node's ssh sessions are killed twice", survived(kill_sessions), 0, "^all well dropped resumed", WHOLE),
    Fault("a node's sshd is restarted", survived(restart_sshd), 0, "^all well dropped resumed", WHOLE),
    Fault("a node's sshd is stopped", survived(stop_sshd), 0, "^all well", WHOLE),
    Fault(
        "a node's sshd and sessions are gone",
        sshd_gone,
        122,
        "^node on lab02: .*silent for 4 s: .*refused the connection",
        LOGS,
        settle=40,
    ),
    Fault(
        "a node's host key is swapped",
        swapped_key,
        122,
        "^node on lab03: .*(OLD-KEY.*NEW-KEY|NEW-KEY.*OLD-KEY)",
        LOGS,
        settle=40,
    ),
    Fault("a node is frozen for 5 s", survived(freeze_5), 0, "^all well", WHOLE),
    Fault("a node is cut for 3 s", survived(cut_3), 0, "^all well", WHOLE),
    Fault("a node is frozen", silent("freeze"), 122, "^node on lab04: .*; incomplete logs: lab04", LOGS, settle=60),
    Fault("a node is cut", silent("cut"), 122, "^node on lab04: .*; incomplete logs: lab04", LOGS, settle=60),
    Fault("a node is powered off", powered_off, 122, "^node on lab04: ", "unread at lab04", settle=40, breaks=True),
    Fault("all nodes are cut at once", all_cut, 122, "^link on lab01: .*all 4 nodes fell silent at once", LOGS),
    Fault("a node's disk is full", full_disk, 0, "^all well gap", "-"),
)
