"""Starts a run's engine on this node, detached, and keeps it: reaps, watches lease and stop requests, ends it whole.

spec: {"run", "host", "node_rank", "argv": [...], "env": {}, "env_expand": {}, "cwd", "activate", "ranks": [],
"files": {name: text}, "lease": s|null, "grace": s, "node_timeout": s, "time", "code": {"state", "digest", "settle": s}
or null: what a sync delivered, to be held while the run begins}. An argv item is a string, {"run_dir": name} (a path
in the run's folder) or {"python": true} (the interpreter that runs this).
Answers J {"event": "started", "pid", "dir"} or {"event": "failed", "message", "hint"}, then X.

Three processes: the foreground answers and ends; the guardian only waits for the supervisor, to clean up
if that is killed; the supervisor is the engine's parent. None of them carries the run's mark.
The final status.json: {"state": "exited"|"stopped"|"lost", "engine_status": 0..255|null, "signal": n|null,
"reason", "time", "left": [pids], "cause", "began": see run_folder.py, "disk_full": true where the disk is full}.
"""

import json
import os
import select
import shutil
import signal
import time

from fleet.node.base.errors import Refused, failed
from fleet.node.base.processes import read_file
from fleet.node.base.wire import frame, send_exit, send_json, start, start_heartbeat
from fleet.node.run.ending import Ending, bury, descendants
from fleet.node.run.engine import (
    KEPT_RUNS,
    LEFTOVER_GRACE,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NAME,
    Beginning,
    engine_env,
    fill_folder,
    prctl,
    prune_runs,
    publish_folder,
    start_engine,
    temporary_folder,
)
from fleet.node.run.extension_builds import Builds, build_root
from fleet.node.run.run_folder import (
    FINAL,
    RANK_WRAPPER,
    boot_id,
    final_status,
    identity,
    read_json,
    read_status,
    run_folder,
    runs_root,
    write_final,
    write_json,
)
from fleet.protocol.frames import MESSAGE
from fleet.protocol.state import LEASE, NODE_LOG, OVER, PID, STATUS, STOP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleet.protocol.messages import run

TICK, ENDING_TICK = 0.05, 0.02


class Signals:
    """SIGCHLD, SIGTERM and SIGINT as a list to read. (CPython's sigtimedwait returns garbage after SIGCONT.)"""

    def __init__(self) -> None:
        self.caught: list[int] = []
        self.reader, writer = os.pipe()
        for fd in (self.reader, writer):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(writer)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda got, _frame: self.caught.append(got))

    def wait(self, seconds: float) -> "list[int]":
        """Those caught since the last call; waits up to `seconds` for the first."""
        if select.select([self.reader], [], [], seconds)[0]:
            os.read(self.reader, 4096)
        caught, self.caught = self.caught, []
        return caught


# -- the supervisor -----------------------------------------------------------------------------------------
class Supervisor:
    """One tick every 50 ms, or as soon as a child ends: reap, look for reasons to stop, move on with stopping."""

    def __init__(
        self, spec: "run.Starting", folder: str, engine: int, signals: "Signals", beginning: "Beginning"
    ) -> None:
        self.spec, self.folder, self.engine, self.signals = spec, folder, engine, signals
        self.beginning = beginning
        self.ended: int | None = None
        self.ending: Ending | None = None
        self.began: float | None = None
        self.reason: str | None = None
        self.cause = "engine"
        self.stop_seen: tuple[int, int] | None = None
        self.lease_seen: tuple[int, int] | None = None
        self.over = False
        self.builds = Builds(folder)
        env = engine_env(spec, folder)  # what it sets itself shows once it runs
        self.builds.add(build_root(lambda name: os.fsdecode(env.get(name.encode(), b""))))
        self.renewed = self.ticked = time.monotonic()

    def run(self) -> None:
        while True:
            caught = self.signals.wait(TICK if self.ending is None else ENDING_TICK)
            self.reap()
            for signum in caught:
                if signum != signal.SIGCHLD:
                    grace = self.spec["grace"] if signum == signal.SIGTERM else 0
                    self.stop("the supervisor got signal %d" % signum, grace, "signal")
            self.look()
            if self.ended is not None and self.ending is None:
                self.began = time.time()
                self.ending = Ending(self.spec["run"], min(self.spec["grace"], LEFTOVER_GRACE), [os.getpid()])
            if self.ending is not None and self.ending.step():
                self.reap()
                return self.finish(self.ending.left)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.engine:
                self.ended = status

    def look(self) -> None:
        """Stop requests, the lease, and time that this node did not see."""
        now = time.monotonic()
        request = stamp(os.path.join(self.folder, STOP))
        if request != self.stop_seen:
            self.stop_seen = request
            asked = read_json(os.path.join(self.folder, STOP))
            self.stop(asked.get("reason") or "stopped", asked.get("grace", self.spec["grace"]), "asked")
        lease = self.spec.get("lease")
        if lease is not None:
            renewal = stamp(os.path.join(self.folder, LEASE))
            if renewal != self.lease_seen:
                self.lease_seen, self.renewed = renewal, now
            # frozen for so long, this node was given up: renewals that waited in a socket prove nothing
            if now - self.ticked > (self.spec.get("node_timeout") or lease):
                self.stop("the node was frozen for %.0f s" % (now - self.ticked), self.spec["grace"], "frozen")
            elif now - self.renewed > lease:
                self.stop("nothing was heard of the head for %g s" % lease, self.spec["grace"], "lease")
        self.ticked = now
        if self.ending is None and self.ended is None:
            self.look_at_builds(now)
            self.look_whether_over()
        if self.ending or self.beginning.over(now):
            self.beginning.release()

    def look_whether_over(self) -> None:
        """End an engine that has no rank left on any node: torchrun takes 1 s to say what their records have said."""
        if not self.over and stamp(os.path.join(self.folder, OVER)):
            self.over = not any(read_file("/proc/%d/comm" % pid) == RANK_WRAPPER for pid in descendants([self.engine]))
            if self.over:
                os.kill(self.engine, signal.SIGKILL)  # of anything less it makes a traceback

    def look_at_builds(self, now: float) -> None:
        """Say which builds a rank may be waiting for in vain."""
        if self.builds.look(now, self.engine):
            try:
                write_json(
                    os.path.join(self.folder, STATUS),
                    {"state": "running", "time": time.time(), "builds": sorted(self.builds.told)[:20]},
                )
            except OSError:
                pass

    def stop(self, reason: str, grace: float, cause: str) -> None:
        if self.ending is not None:
            self.ending.hurry(grace)
            return
        self.reason, self.cause, self.began = reason, cause, time.time()
        self.ending = Ending(self.spec["run"], grace, [os.getpid()])
        try:
            write_json(
                os.path.join(self.folder, STATUS),
                {"state": "stopping", "reason": reason, "time": time.time(), "cause": cause, "began": self.began},
            )
        except OSError:
            pass

    def finish(self, left: "list[int]") -> None:
        self.builds.finish()
        state = "exited" if self.reason is None else "stopped"
        status = final_status(state, self.reason, left, self.cause, self.began)
        if self.ended is not None and os.WIFEXITED(self.ended):
            status["engine_status"] = os.WEXITSTATUS(self.ended)
        elif self.over:
            status["engine_status"] = 0  # as its ranks ended
        elif self.ended is not None:
            status["signal"] = os.WTERMSIG(self.ended)
        disk = os.statvfs(self.folder)
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < 65536:
            status["disk_full"] = True
        write_final(self.folder, status)


def stamp(path: str) -> "tuple[int, int] | None":
    """Changes whenever the file is renewed or replaced; None while there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


# -- three processes ----------------------------------------------------------------------------------------
def detach(keep: int) -> None:
    """Become a session of our own with nothing of the caller's open but `keep`."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != keep:
            try:
                os.close(int(name))
            except OSError:
                pass
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def supervise(spec: "run.Starting", temporary: str, guardian: "dict[str, int | None]", writer: int) -> None:
    """The supervisor's life: publish the folder, start the engine, answer, keep it."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NAME, b"fleet-supervise")
    signals = Signals()
    folder = None
    try:
        write_json(os.path.join(temporary, PID), dict(identity(os.getpid()), guardian=guardian, boot=boot_id()))
        folder = publish_folder(temporary, spec["run"])
        beginning = Beginning(spec, folder)
        engine = start_engine(spec, folder)
    except (Refused, OSError, ValueError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        why = error if isinstance(error, Refused) else Refused("cannot start the run: %s" % error)
        if folder is not None:
            write_final(folder, final_status("stopped", why.message, []))
        os.write(writer, json.dumps(failed(why)).encode())
        return
    supervisor = Supervisor(spec, folder, engine, signals, beginning)  # its clock runs before anybody knows of it
    os.write(writer, json.dumps({"event": "started", "pid": os.getpid(), "dir": folder}).encode())
    os.close(writer)
    try:
        supervisor.run()
    except BaseException as error:
        with open(os.path.join(folder, NODE_LOG), "ab") as log:
            log.write(("fleet: the supervisor failed: %r\n" % error).encode("utf-8", "replace"))
        raise


def guard(spec: "run.Starting", temporary: str, writer: int) -> None:
    """The guardian's life: if the supervisor is killed, end the run in its place."""
    detach(writer)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NAME, b"fleet-guardian")
    guardian = identity(os.getpid())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            supervise(spec, temporary, guardian, writer)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda got, _frame: os.kill(child, got))
    _pid, status = os.waitpid(child, 0)
    folder = run_folder(spec["run"])
    ours = status != 0 and folder and read_json(os.path.join(folder, PID)).get("pid") == child
    if ours and folder and read_status(folder).get("state") not in FINAL:
        how = "by signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else "by a fault of its own"
        bury(spec["run"], folder, spec["grace"], "the supervisor was ended " + how, [os.getpid()])
    try:
        prune_runs(KEPT_RUNS - 1)  # beside this one
    except OSError:
        pass  # another run's guardian does so, too


def answer() -> None:
    spec: run.Starting = start(heartbeat=False)
    spec["umask"] = os.umask(0o077)
    temporary = temporary_folder(spec)
    try:
        fill_folder(temporary, spec)
    except (OSError, ValueError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        where = "cannot create the run's folder in %s: %s" % (runs_root(), error)
        send_json(failed(Refused(where, "is the home folder there writable, its disk full?")))
        return
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            guard(spec, temporary, writer)
        finally:
            os._exit(0)
    os.close(writer)
    start_heartbeat()
    # one message, not up to end of file: an engine that hangs on its way into a dead mount holds the other end
    said = os.read(reader, 65536)
    if said:
        frame(MESSAGE, said)
    else:
        send_json(failed(Refused("the supervisor died before it could start the run")))


def main() -> None:
    answer()
    send_exit(0)
