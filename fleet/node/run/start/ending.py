"""Ends a run's processes, whichever process started them, and wherever they are."""

import os
import signal

from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.processes import descendants_of, is_inside, own_pid, read_file, send_signal, stat_of, status_of
from fleet.node.base.run_folder import (
    final_status,
    only,
    rank_records,
    read_json,
    read_status,
    why_gone,
    write_final,
)
from fleet.node.base.types import Any, Sequence
from fleet.node.run.marks import marked
from fleet.node.run.start.containers import Apart
from fleet.node.run.start.extension_builds import Builds
from fleet.node.run.start.kernel_log import KernelLog
from fleet.protocol.state import ENDED_WRAPPER, FINAL, PID, RANK_WRAPPER

LEFTOVER_GRACE = 2.0  # for leftover processes that no other process waits for
TICK = 1 / os.sysconf("SC_CLK_TCK")  # the precision of start times, in seconds
RECORD_GRACE = 5.0  # for a rank's wrapper to record how its rank ended, even on a node that swaps
HARD_SECONDS = 10.0  # after SIGKILL, until a process must be gone; otherwise it hangs in the kernel
LINE_BYTES = 200
LAUNCHER_GRACE = 1.0  # for a launcher without ranks, before SIGTERM, and again before SIGKILL


def descendants(ancestors: "list[int]") -> "dict[int, int]":
    """Returns {pid: start time} of all processes below the given pids."""
    stats = descendants_of(ancestors)
    # a zombie whose other threads run on has not ended
    over = {pid for pid, stat in stats.items() if stat[0] in (b"Z", b"X") and int(stat[17]) <= 1}
    return {pid: int(stat[19]) for pid, stat in stats.items() if pid not in over}


class Ending:
    """Ends a run's processes. Each rank gets the first signal once, through its wrapper (rank.py). If the first signal
    was not SIGTERM, each rank gets SIGTERM at half of the grace period. After the grace period all processes get
    SIGKILL. A process that is neither a rank nor below one, such as a launcher, gets no signal before the wrappers are
    gone.

    A process belongs to the run by its marks, or by descent from `ancestors`. grace: the grace period in seconds.
    signum: the first signal, 0 for none. launcher: the pid of the launcher, which has LAUNCHER_GRACE seconds once it
    has no ranks; -1: none. Call step() about every 50 ms until it returns True. Then these are known. left: the pids
    that SIGKILL did not end. killed: the pids of wrappers whose ranks, or whose ranks' leftovers, had to be killed.
    ended: the processes that were neither ranks nor below one: {pid: (process group, command line)}. Wrappers and
    groups have the numbers of their own pid namespace. A container's client is no such process, as it ends with the
    container.
    """

    def __init__(
        self,
        run: str,
        grace: float,
        ancestors: "Sequence[int]" = (),
        clock: Clock = CLOCK,
        signum: int = signal.SIGTERM,
        launcher: int = -1,
    ) -> None:
        self.run, self.clock, self.signum, self.launcher = run, clock, signum, launcher
        self.ancestors = list(ancestors)
        self.kill_at = clock.monotonic() + grace
        self.term_at = clock.monotonic() + (0.0 if signum == signal.SIGTERM else grace / 2)
        self.polite = grace > 0
        self.killing_since: float | None = None
        self.without_ranks: float | None = None  # since when no rank is left
        self.signals_sent: set[tuple[int, int, int]] = set()
        self.newest: int | None = None  # start time of the youngest process at the beginning
        self.quiet = 0  # steps in a row that found no process
        self.empty: float | None = None  # since when no process was found
        self.left: list[int] = []
        self.killed: set[int] = set()
        self.ended: dict[int, tuple[int, str]] = {}
        self.container = Apart.of(run)

    def hurry(self, grace: float) -> None:
        """Lets the grace period end in `grace` seconds, unless it ends before."""
        self.kill_at = min(self.kill_at, self.clock.monotonic() + grace)

    def members(self) -> "dict[int, int]":
        """Returns {pid: start time} of the run's live processes."""
        found = marked(self.run)
        found.update(it for it in self.under().items() if self.container is None or is_inside(it[0]))
        for pid in self.ancestors:
            found.pop(pid, None)
        return found

    def under(self) -> "dict[int, int]":
        """Returns {pid: start time} of the live processes below the ancestors."""
        return {pid: born for pid, born in descendants(self.ancestors).items() if pid not in self.ancestors}

    def outside(self) -> "list[int]":
        """Returns the pids of the container's client and below it, without this program's helpers."""
        return sorted(self.under().keys() - descendants(self.ancestors[1:]).keys())

    def step(self) -> bool:
        """Sends the signals that are due. Returns True if no process is left, or if one cannot be ended."""
        found = self.members()
        self.left = sorted(found)
        if not found:
            # checks twice, as a process in the middle of exec shows no environment for a moment
            self.quiet += 1
            self.empty = self.empty or self.clock.monotonic()
            if self.quiet < 2 or self.container is None:
                return self.quiet >= 2
            return self.container.is_gone(self.outside(), self.clock.monotonic() - self.empty)
        self.quiet, self.empty = 0, None
        if self.newest is None:
            self.newest = max(found.values())
            self.clock.sleep(TICK)  # so that processes which they start after SIGTERM are younger
        now = self.clock.monotonic()
        names = {pid: read_file("/proc/%d/comm" % pid) for pid in found}
        wrappers = {pid for pid in found if names[pid] in (RANK_WRAPPER, ENDED_WRAPPER)}
        if wrappers and RANK_WRAPPER not in names.values() and not descendants_of(wrappers):
            for pid in wrappers:
                send_signal(pid, found[pid], signal.SIGHUP)  # the wrapper ends, and its launcher sees the rank's end
        if not self.polite or now >= self.kill_at:
            self.kill(found, wrappers, now)
        else:
            self.ask(found, wrappers, now)
        return now >= self.kill_at + HARD_SECONDS

    def ask(self, found: "dict[int, int]", wrappers: "set[int]", now: float) -> None:
        """Sends the signals of the grace period: to the wrappers, and after their end to all other processes."""
        for pid in wrappers:
            self.send(pid, found[pid], signal.SIGTERM if now >= self.term_at else self.signum)
        self.without_ranks = None if wrappers else self.without_ranks or now
        if self.without_ranks is None:
            return
        patience, launcher = now - self.without_ranks, {self.launcher, *descendants_of([self.launcher])}
        if self.container and self.launcher > 0:
            launcher.update(self.container.firsts(found))
        for pid in sorted(found, key=lambda pid: found[pid]):
            if pid in launcher and patience >= LAUNCHER_GRACE:
                self.send(pid, found[pid], signal.SIGKILL if patience >= 2 * LAUNCHER_GRACE else signal.SIGTERM)
            elif pid not in launcher and (now >= self.term_at or self.signum) and found[pid] <= (self.newest or 0):
                self.send(pid, found[pid], signal.SIGTERM)

    def kill(self, found: "dict[int, int]", wrappers: "set[int]", now: float) -> None:
        """Sends SIGKILL to all processes. A wrapper gets it only if it has not ended RECORD_GRACE seconds later."""
        self.killing_since = self.killing_since or now
        above = {pid: wrapper for wrapper in wrappers for pid in descendants_of([wrapper])}
        # oldest first: a script whose `cp` was killed must not go on
        for pid in sorted(found, key=lambda pid: found[pid]):
            if pid in wrappers and now < self.killing_since + RECORD_GRACE:
                continue  # it ends by itself after its rank
            if pid in above:
                self.killed.add(own_pid(above[pid]))
            elif pid not in self.ended:
                self.note(pid)
            send_signal(pid, found[pid], signal.SIGKILL)

    def send(self, pid: int, born: int, signum: int) -> None:
        """Sends a signal to a process, but each number only once."""
        if (pid, born, signum) not in self.signals_sent:
            self.signals_sent.add((pid, born, signum))
            self.note(pid)
            send_signal(pid, born, signum)

    def note(self, pid: int) -> None:
        """Adds a process to `ended`."""
        stat, line = stat_of(pid), read_file("/proc/%d/cmdline" % pid, LINE_BYTES).decode("utf-8", "replace")
        group = (status_of(pid, b"NSpgid")[-1:] or stat[2:3] or [b"0"])[0]
        self.ended[pid] = int(group), line.replace("\0", " ").strip()

    def finish(self) -> "list[int]":
        """Calls step() until the end, and returns `left`."""
        while not self.step():
            self.clock.sleep(0.05)
        return self.left


def killed(ending: Ending, folder: str) -> "list[int]":
    """Returns the ranks that had to be killed, or whose leftover processes had to be killed."""
    return sorted(record["rank"] for record in rank_records(folder) if record.get("wrapper") in ending.killed)


def end_and_record(
    run: str,
    folder: str,
    grace: float,
    reason: str,
    ancestors: "Sequence[int]" = (),
    state: str = "lost",
    cause: str = "supervisor",
    kernel: "KernelLog | None" = None,
    end: Any = None,
    clock: Clock = CLOCK,
    began: "float | None" = None,
) -> "dict[str, Any]":
    """Ends the processes that a dead supervisor left. Writes the last status to status.json, and returns it. If the
    supervisor wrote a last status just before its death, that status stays. state, cause, end: as for final_status().
    kernel: the kernel log since the run's beginning. began: when the node began to end the run; None: now."""
    began, ending = began or clock.time(), Ending(run, grace, ancestors, clock=clock)
    status = final_status(state, reason, ending.finish(), cause, began, end)
    status["killed"] = killed(ending, folder)
    Builds(folder).finish()
    recorded = read_status(folder)
    if recorded.get("state") in FINAL:
        return dict(recorded, left=status["left"])
    if recorded.get("state") == "stopping":  # the first reason counts
        status.update(only(recorded, "reason", "cause", "began", "end"))
    if cause != "asked":
        ticks = read_json(os.path.join(folder, PID)).get("start") or 0
        status["kernel"] = (kernel or KernelLog(ticks / os.sysconf("SC_CLK_TCK"))).relevant_lines(folder, None)
    write_final(folder, status)
    return status


def end_unsupervised(run: str, folder: str, grace: float = LEFTOVER_GRACE, clock: Clock = CLOCK) -> "dict[str, Any]":
    """Ends the processes of a run without a supervisor, and records why. Returns the run's last status."""
    cause, reason, began = why_gone(folder)
    return end_and_record(run, folder, grace, reason, cause=cause, clock=clock, began=began)
