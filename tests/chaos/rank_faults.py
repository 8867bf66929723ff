"""What ranks do to their run."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.chaos.ground import Ground, said, until, wait
from tests.chaos.table import Fault, Seen


def ended(ground: Ground, code: int) -> Seen:
    """A run's end by its summary: the first failure, or why it was stopped, or that all was well."""
    until(lambda: (ground.run() / "summary.json").exists(), "summary.json")
    summary = ground.summary()
    first = summary["first_failure"]
    if first:
        rank = "" if first["rank"] is None else f" rank {first['rank']}"
        cause = f"{first['what']} on {first['host']}{rank}: {first['message']}"
        if first["left_early"]:
            cause += f"; {first['hint']}"
    else:
        marks = [
            e["event"] for e in ground.events() if e["event"] in ("dropped", "resumed", "blocked", "unblocked", "gap")
        ]
        cause = f"stopped: {summary['stopped']}" if summary["stopped"] else f"all well {' '.join(dict.fromkeys(marks))}"
    if summary["incomplete_logs"]:
        cause += f"; incomplete logs: {','.join(summary['incomplete_logs'])}"
    if summary["exit_code"] != code:
        cause += f"; BUT the summary says exit code {summary['exit_code']}"
    return Seen(code, cause, ground.log_digests())


def befalls(how: str, rank: int = 5) -> Callable[[Ground], Seen]:
    """The rank brings it on itself."""

    def go(ground: Ground) -> Seen:
        return ended(ground, wait(ground.launch("./ranks.py", how, str(rank))))

    return go


def signalled(name: str, rank: int = 5) -> Callable[[Ground], Seen]:
    """Somebody on the node sends the rank a signal."""

    def go(ground: Ground) -> Seen:
        process = ground.launch("./ranks.py", "sleep")
        host = ground.names[rank // 2]
        ground.lab.sh(host, f"kill -{name} {ground.rank_pid(host, rank)}")
        return ended(ground, wait(process))

    return go


def interrupted(*argv: str, times: int = 1, grace: str = "3", signum: int = signal.SIGINT) -> Callable[[Ground], Seen]:
    """Ctrl-C while the ranks are as argv says."""

    def go(ground: Ground) -> Seen:
        process = ground.launch("--grace", grace, *argv)
        for _ in range(times):
            process.send_signal(signum)
            until(lambda: "interrupted:" in said(process), "a word about Ctrl-C")
        return ended(ground, wait(process))

    return go


def saves(ground: Ground) -> Seen:
    """Ranks save through a child when they are told to end."""
    ground.made.append("/root/saved-")
    seen = interrupted("./ranks.py", "save", grace="20")(ground)
    count = sum(len(ground.lab.sh(host, "cat /root/saved-*", check=False).split()) for host in ground.names)
    for host in ground.names:
        ground.lab.sh(host, "rm -f /root/saved-*")
    return Seen(seen.code, seen.cause, f"{count} saved, {seen.digests}")


def two_runs(ground: Ground) -> Seen:
    """One of two runs on the same hosts is stopped; the other one goes on to its end."""
    (ground.folder / "other").mkdir()
    other = ground.launch("./ranks.py", "sleep", cwd=ground.folder / "other")
    process = ground.launch("--share", "./ranks.py", "count", "300")
    other.send_signal(signal.SIGINT)
    stopped = wait(other)
    seen = ended(ground, wait(process))
    return Seen(
        seen.code,
        f"the stopped one {stopped}; the other {seen.cause}",
        f"{ground.counted(300)}; {ground.log_digests(ground.folder / 'other')}",
    )


FAULTS = (
    Fault("a rank exits 3", befalls("exit"), 3, "^rank on lab03 rank 5: .*exit code 3", "logs equal"),
    Fault("a rank raises", befalls("raise"), 1, "^rank on lab03 rank 5: ", "logs equal"),
    Fault("a rank segfaults", befalls("segfault"), 139, "^rank on lab03 rank 5: .*(signal 11|SIGSEGV)", "logs equal"),
    Fault("a rank is killed -9", signalled("KILL"), 137, "^rank on lab03 rank 5: .*(signal 9|SIGKILL)", "logs equal"),
    Fault("a rank is sent TERM", signalled("TERM"), 143, "^rank on lab03 rank 5: .*(signal 15|SIGTERM)", "logs equal"),
    Fault(
        "a rank leaves early with 0",
        befalls("early", 0),
        9,
        "^rank on lab02 rank 3: .*rank 0 on lab01 had ended with exit code 0",
        "logs equal",
    ),
    Fault("a rank leaves a daemon", befalls("daemon"), 4, "^rank on lab03 rank 5: .*exit code 4", "logs equal"),
    Fault(
        "a rank's child cleared its environment",
        befalls("bare"),
        5,
        "^rank on lab03 rank 5: .*exit code 5",
        "logs equal",
    ),
    Fault(
        "ranks cleared their environment, Ctrl-C",
        interrupted("sh", "-c", "echo up; exec env -i /bin/sleep 1000"),
        130,
        "^stopped: interrupted",
        "logs equal",
    ),
    Fault(
        "ranks ignore SIGTERM, Ctrl-C",
        interrupted("./ranks.py", "stubborn"),
        130,
        "^stopped: interrupted",
        "logs equal",
    ),
    Fault("ranks save through a child, Ctrl-C", saves, 130, "^stopped: interrupted", "8 saved, logs equal"),
    Fault(
        "two runs, one is stopped",
        two_runs,
        0,
        "^the stopped one 130; the other all well",
        "logs equal, whole; logs equal",
    ),
)
