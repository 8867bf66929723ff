"""Supervises a run on its node: reaps processes, watches the lease and stop requests, ends all processes of the run,
and reports how it ended."""

import os
import select
import signal

from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.files import tail_of
from fleet.node.base.processes import rank_wrappers, send_signal, start_time
from fleet.node.base.run_folder import (
    disk_is_full,
    final_status,
    lease_of,
    rank_records,
    ranks_up,
    read_json,
    stamp_of,
    try_write,
    write_final,
)
from fleet.node.base.types import Any, run_specs
from fleet.node.gang.timed_out import HOLD_SECONDS, timed_out
from fleet.node.run.marks import marked
from fleet.node.run.start.containers import Apart
from fleet.node.run.start.ending import LEFTOVER_GRACE, Ending, killed
from fleet.node.run.start.engine import CodeLock, engine_env
from fleet.node.run.start.extension_builds import Builds, build_root
from fleet.node.run.start.kernel_log import KernelLog
from fleet.node.run.start.metrics import Metrics
from fleet.node.run.times import Times
from fleet.protocol.codes import FOR_RANKS
from fleet.protocol.state import LEASE, OVER, STATUS, STOP

TICK, ENDING_TICK = 0.05, 0.02
MOST_NAMED = 5  # command lines of processes that a rank left running
TAIL_BYTES = 64 * 1024  # of a failed rank's stderr that is searched for a timeout
LEADER_SECONDS = 5.0  # so long the leader's stop request may take


class Signals:
    """Collects SIGCHLD, SIGTERM, SIGINT and the signals for ranks. Does so with a pipe, because CPython's sigtimedwait
    returns garbage after SIGCONT."""

    def __init__(self) -> None:
        self.caught: list[int] = []
        self.reader, writer = os.pipe()
        for fd in (self.reader, writer):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(writer)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, *FOR_RANKS):
            signal.signal(signum, lambda got, _frame: self.caught.append(got))

    def wait(self, seconds: float) -> "list[int]":
        """Returns the signals caught since the last call; waits up to `seconds` for the first."""
        if select.select([self.reader], [], [], seconds)[0]:
            os.read(self.reader, 4096)
        caught, self.caught = self.caught, []
        return caught


class Supervisor:
    """Supervises one run. Every 50 ms, or as soon as a child ends, it reaps, checks for reasons to stop, and continues
    a stop.

    engine: the pid of the engine. ended: the engine's wait status, None while it runs. ending: ends the run's
    processes, None until that begins. began, reason, cause, end: see final_status() in run_folder.py. lease: the
    seconds for which the run goes on without a head; None: for ever. stop_seen, lease_seen: stamps of the files that
    were read last. over: all ranks of the run have ended well. failed: a rank of this node has failed. held_until: when
    this node ends its ranks after one of them timed out. renewed: when the lease was renewed. ticked: when look() last
    ran."""

    def __init__(
        self,
        spec: "run_specs.Starting",
        folder: str,
        engine: int,
        signals: "Signals",
        code_lock: "CodeLock",
        kernel: "KernelLog",
        clock: Clock = CLOCK,
    ) -> None:
        self.spec, self.folder, self.engine, self.signals = spec, folder, engine, signals
        self.code_lock, self.kernel, self.clock = code_lock, kernel, clock
        self.ended: int | None = None
        self.ending: Ending | None = None
        self.began: float | None = None
        self.reason: str | None = None
        self.cause = "engine"
        self.end: Any = None
        self.stop_seen: tuple[int, int] | None = None
        self.lease: float | None = spec.get("lease")
        self.lease_seen: tuple[int, int] | None = None
        self.over = self.failed = False
        self.held_until = 0.0
        self.builds, self.times = Builds(folder), Times(folder, clock)
        self.builds.add(build_root(engine_env(spec, folder)))  # variables that the engine itself sets are read later
        self.renewed = self.ticked = clock.monotonic()
        self.metrics: Metrics | None = None
        self.container = Apart.of(spec["run"])

    def run(self) -> None:
        self.metrics = Metrics(self.spec, self.folder)
        while True:
            caught = self.signals.wait(TICK if self.ending is None else ENDING_TICK)
            self.look_at_engine()
            for signum in caught:
                if signum in FOR_RANKS:
                    self.pass_on(signum)
                elif signum != signal.SIGCHLD:
                    grace = self.spec["grace"] if signum == signal.SIGTERM else 0
                    self.stop("the supervisor got signal %d" % signum, grace, "signal")
            self.look()
            if self.ending is not None and self.ending.step():
                self.reap()
                return self.finish(self.ending)

    def look_at_engine(self) -> None:
        """Reaps, and begins to end the run if the engine has ended by itself."""
        self.reap()
        if self.ended is not None and self.ending is None:
            # ranks are still up if another process has killed their launcher
            up, grace = ranks_up(self.folder), self.spec["grace"]
            self.ending = self.begin_ending(grace if up else min(grace, LEFTOVER_GRACE), signal.SIGTERM if up else 0)

    def pass_on(self, signum: int) -> None:
        """Sends a signal to each rank, through its wrapper (rank.py), as no launcher forwards such a signal."""
        processes = marked(self.spec["run"])
        for pid in rank_wrappers(processes):
            send_signal(pid, processes[pid], signum)

    def begin_ending(self, grace: float, signum: int) -> Ending:
        self.began = self.clock.time()
        launcher = self.engine if self.ended is None else -1
        own = [os.getpid()] + ([self.metrics.pid] if self.metrics is not None and self.metrics.pid else [])
        return Ending(self.spec["run"], grace, own, clock=self.clock, signum=signum, launcher=launcher)

    def reap(self) -> None:
        """Reads the wait status of each child that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.engine:
                self.ended = status
            elif self.metrics is not None and pid == self.metrics.pid:
                self.metrics.pid = 0

    def look(self) -> None:
        """Checks for stop requests, the lease, and time in which this node was frozen."""
        now = self.clock.monotonic()
        request = stamp_of(os.path.join(self.folder, STOP))
        if request != self.stop_seen:
            self.stop_seen = request
            stop = read_json(os.path.join(self.folder, STOP))
            grace, signum = stop.get("grace", self.spec["grace"]), stop.get("signal") or signal.SIGTERM
            self.stop(stop.get("reason") or "stopped", grace, "asked", stop.get("end"), signum)
        if self.spec.get("lease") is not None:
            renewal = stamp_of(os.path.join(self.folder, LEASE))
            if renewal != self.lease_seen:
                self.lease_seen, self.renewed = renewal, now
                self.lease = lease_of(self.folder, dict(self.spec))
        lease = self.lease
        if lease is not None:
            # after so long a freeze, the head has given this node up: renewals that come now have waited in a socket
            if now - self.ticked > (self.spec.get("node_timeout") or lease):
                self.stop("the node was frozen for %.0f s" % (now - self.ticked), self.spec["grace"], "frozen")
            elif now - self.renewed > lease:
                self.stop("the head sent nothing for %g s" % lease, self.spec["grace"], "lease")
        self.ticked = now
        self.times.look(now)
        if self.ending is None and self.ended is None:
            self.look_at_builds(now)
            self.look_whether_over()
            self.look_at_ranks()
        if self.ending or self.code_lock.over(now):
            self.code_lock.release()

    def look_whether_over(self) -> None:
        """Ends the engine if all ranks of all nodes have ended well, because torchrun would take 1 s more to end by
        itself."""
        if not self.over and stamp_of(os.path.join(self.folder, OVER)):
            self.over = not ranks_up(self.folder)
            if self.over:
                found = marked(self.spec["run"]) if self.container else {self.engine: start_time(self.engine) or 0}
                for pid in self.container.firsts(found) if self.container else found:
                    send_signal(pid, found[pid], signal.SIGKILL)  # after SIGTERM it would print a traceback

    def look_at_ranks(self) -> None:
        """Ends all ranks of this node if one has failed, as their launcher notices the failure only after all have
        ended. If the failed rank timed out, the ranks go on for some seconds, in which the leader reads their stacks
        and then stops the run. If the leader does not stop it, this method ends the ranks after that."""
        elastic = (self.spec.get("about") or {}).get("least")
        if not elastic and not self.failed:
            failed = [record for record in rank_records(self.folder) if record["status"] != 0]
            self.failed = bool(failed)
            if any(map(self.timed_out, failed)):
                self.held_until = self.clock.monotonic() + HOLD_SECONDS + LEADER_SECONDS
        if self.failed and (self.clock.monotonic() >= self.held_until or not ranks_up(self.folder)):
            self.ending = self.begin_ending(self.spec["grace"], signal.SIGTERM)

    def timed_out(self, record: "dict[str, Any]") -> bool:
        """Returns whether a failed rank had waited for others in vain in its last attempt."""
        try:
            with open(os.path.join(self.folder, "rank%d.err" % record["rank"]), "rb") as f:
                return timed_out(tail_of(f, TAIL_BYTES, record["begins"][1]))
        except OSError:
            return False

    def look_at_builds(self, now: float) -> None:
        """Reports the stale build locks for which a rank may be waiting."""
        if self.builds.look(now, self.engine):
            status = {"state": "running", "time": self.clock.time(), "builds": sorted(self.builds.reported)[:20]}
            try_write(os.path.join(self.folder, STATUS), status)

    def stop(self, reason: str, grace: float, cause: str, end: Any = None, signum: int = signal.SIGTERM) -> None:
        """Begins to end the run, or shortens the grace period if its end has begun. grace: seconds. reason, cause, end:
        as for final_status(). signum: the first signal."""
        self.look_at_engine()  # the engine may have ended by itself since the last look: then the run is not "stopped"
        if self.ending is not None:
            self.ending.hurry(grace)
            if self.reason is not None or not self.failed:
                return
        self.ending = self.ending or self.begin_ending(grace, signum)
        self.reason, self.cause, self.end = reason, cause, end
        status = {"state": "stopping", "reason": reason, "time": self.clock.time()}
        try_write(os.path.join(self.folder, STATUS), dict(status, cause=cause, began=self.began, end=end))

    def finish(self, ending: Ending) -> None:
        self.builds.finish()
        self.times.mark()
        if self.metrics is not None:
            self.metrics.end()
        state = "exited" if self.reason is None else "stopped"
        status = final_status(state, self.reason, ending.left, self.cause, self.began, self.end)
        leftovers = self.behind(ending) if self.reason is None and not self.failed else []
        status.update(killed=killed(ending, self.folder) + [it["rank"] for it in leftovers], behind=leftovers)
        ended = self.ended
        # a client's code above 128 shows a signal only if no rank failed, as launchers exit with a failed rank's code.
        # self.failed may be False after a failure, as the engine may have ended before look_at_ranks()
        if self.container and all(record["status"] == 0 for record in rank_records(self.folder)):
            ended = self.container.ended(ended)
        if ended is not None and os.WIFEXITED(ended):
            status["engine_status"] = os.WEXITSTATUS(ended)
        elif self.over:
            status["engine_status"] = 0  # its ranks ended well, and look_whether_over() killed it
        elif ended is not None and not self.failed:  # otherwise this process killed the engine after its ranks
            status["signal"] = os.WTERMSIG(ended)
        if status["engine_status"] != 0 or self.reason is not None:
            status["kernel"] = self.kernel.relevant_lines(self.folder, self.began if self.cause == "asked" else None)
        if disk_is_full(self.folder):
            status["disk_full"] = True
        write_final(self.folder, status)

    def behind(self, ending: Ending) -> "list[dict[str, Any]]":
        """Returns the background processes that successful scripts left, and that had to be ended. Omits a process in
        its own process group, such as a daemon, as a shell would not wait for such a process either."""
        found: list[dict[str, Any]] = []
        for record in rank_records(self.folder):
            lines = [line for group, line in ending.ended.values() if group == record["pid"]]
            if lines and record.get("script") and record["status"] == 0:
                found.append({"rank": record["rank"], "count": len(lines), "commands": lines[:MOST_NAMED]})
        return found
