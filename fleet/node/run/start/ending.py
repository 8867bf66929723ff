"""The end of a run's processes, whoever started them and wherever they went."""

import os
import signal

from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.processes import below, read_file, send_signal
from fleet.node.base.run_folder import RANK_WRAPPER, final_status, only, read_json, read_status, write_final
from fleet.node.base.types import Any, Sequence
from fleet.node.run.marks import marked
from fleet.node.run.start.extension_builds import Builds
from fleet.node.run.start.kernel_log import KernelLog
from fleet.protocol.state import FINAL, PID

LEFTOVER_GRACE = 2.0  # of what is left when nobody waits for it any more
TICK = 1 / os.sysconf("SC_CLK_TCK")  # the grain of start times, in seconds
RECORD_GRACE = 5.0  # of a rank's wrapper: it puts on record how its rank ended, also on a node that swaps


def descendants(ancestors: "list[int]") -> "dict[int, int]":
    """{pid: start_time} of all processes below the given pids."""
    stats = below(ancestors)
    # a zombie whose other threads run on has not ended
    over = {pid for pid, stat in stats.items() if stat[0] in (b"Z", b"X") and int(stat[17]) <= 1}
    return {pid: int(stat[19]) for pid, stat in stats.items() if pid not in over}


class Ending:
    """Ends a run's processes: SIGTERM once to each, SIGKILL when the grace is over, until none is left. What they start
    in the grace, a copy of a last checkpoint for instance, has the rest of it in peace.

    A process belongs to the run by its marks, or by descent from `ancestors`. Call step() every 50 ms or so until it
    is true; `left` then holds the pids that outlived SIGKILL for `hard` seconds.
    """

    def __init__(
        self, run: str, grace: float, ancestors: "Sequence[int]" = (), hard: float = 10.0, clock: Clock = CLOCK
    ) -> None:
        self.run, self.clock = run, clock
        self.ancestors = list(ancestors)
        self.hard = hard
        self.kill_at = clock.monotonic() + grace
        self.polite = grace > 0
        self.killing_since: float | None = None
        self.told: set[tuple[int, int]] = set()
        self.newest: int | None = None  # start time of the youngest that was there at the beginning
        self.quiet = 0
        self.left: list[int] = []

    def hurry(self, grace: float) -> None:
        self.kill_at = min(self.kill_at, self.clock.monotonic() + grace)

    def members(self) -> "dict[int, int]":
        found = marked(self.run)
        found.update(descendants(self.ancestors))
        for pid in self.ancestors:
            found.pop(pid, None)
        return found

    def step(self) -> bool:
        found = self.members()
        self.left = sorted(found)
        if not found:
            # a process in the middle of exec shows no environment for a moment: look twice
            self.quiet += 1
            return self.quiet >= 2
        self.quiet = 0
        if self.newest is None:
            self.newest = max(found.values())
            self.clock.sleep(TICK)  # what SIGTERM has them start is younger
        now = self.clock.monotonic()
        kill = not self.polite or now >= self.kill_at
        if kill and self.killing_since is None:
            self.killing_since = now
        spare_wrappers = kill and now < (self.killing_since or now) + RECORD_GRACE
        # youngest first: a rank hears it from here before its engine hears it and passes it on. SIGKILL, oldest first:
        # a script whose `cp` was killed must not go on
        for pid in sorted(self.left, key=lambda pid: found[pid], reverse=not kill):
            key = (pid, found[pid])
            if spare_wrappers and read_file("/proc/%d/comm" % pid) == RANK_WRAPPER:
                continue  # it ends by itself, once its rank has
            if kill or key not in self.told and found[pid] <= self.newest:
                self.told.add(key)
                send_signal(pid, found[pid], signal.SIGKILL if kill else signal.SIGTERM)
        return now >= self.kill_at + self.hard

    def finish(self, poll: float = 0.05) -> "list[int]":
        """Step to the end; returns `left`."""
        while not self.step():
            self.clock.sleep(poll)
        return self.left


def bury(
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
) -> "dict[str, Any]":
    """End what a dead supervisor left behind and say so in status.json; returns that status. One that had its last word
    just before it was taken for dead, or was killed as deaf, keeps it. kernel: what was kept of its log since the run's
    beginning."""
    began = clock.time()
    status = final_status(state, reason, Ending(run, grace, ancestors, clock=clock).finish(), cause, began, end)
    Builds(folder).finish()
    said = read_status(folder)
    if said.get("state") in FINAL:
        return dict(said, left=status["left"])
    if said.get("state") == "stopping":  # the first word counts: what it was ended for
        status.update(only(said, "reason", "cause", "began", "end"))
    if cause != "asked":
        ticks = read_json(os.path.join(folder, PID)).get("start") or 0
        status["kernel"] = (kernel or KernelLog(ticks / os.sysconf("SC_CLK_TCK"))).told(folder, None)
    write_final(folder, status)
    return status
