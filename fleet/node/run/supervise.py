"""Starts a run's engine on this node, detached, and keeps it: reaps, watches lease and stop requests, ends it whole.

spec: {"run", "host", "node_rank", "argv": [...], "env": {}, "env_expand": {}, "cwd", "python", "activate", "ranks": [],
"files": {name: text}, "lease": s|null, "grace": s, "node_timeout": s, "time", "code": {"state", "digest", "settle": s}
or null: what a sync delivered, to be held while the run begins}. An argv item is a string, {"run_dir": name} (a path
in the run's folder) or {"python": true} (the interpreter that runs this).
Answers J {"event": "started", "pid", "dir"}, {"event": "neighbours", "runs": those that keep one from its start that is
to be "alone"} or {"event": "failed", "message", "hint"}, then X.

Three processes: the foreground answers and ends; the guardian only waits for the supervisor, to clean up
if that is killed; the supervisor is the engine's parent. None of them carries the run's mark.
The final status.json: {"state": "exited"|"stopped"|"lost", "engine_status": 0..255|null, "signal": n|null,
"reason", "time", "left": [pids], "cause", "began": see run_folder.py, "disk_full": true where the disk is full}.
"""

import os
import signal
from contextlib import suppress

from fleet.node.base import json
from fleet.node.base.errors import Refused, failed
from fleet.node.base.files import remove_tree
from fleet.node.base.processes import boot_id, identity, send_signal, start_time
from fleet.node.base.run_folder import (
    final_status,
    read_json,
    read_status,
    run_folder,
    runs_root,
    write_final,
    write_json,
)
from fleet.node.base.types import run
from fleet.node.base.wire import frame, send_exit, send_json, start, start_heartbeat
from fleet.node.run.neighbours import Occupied, be_alone
from fleet.node.run.start.ending import bury
from fleet.node.run.start.engine import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NAME,
    Beginning,
    Forbidden,
    fill_folder,
    prctl,
    publish_folder,
    start_engine,
    temporary_folder,
)
from fleet.node.run.start.kernel_log import KernelLog
from fleet.node.run.start.supervisor import Signals, Supervisor
from fleet.protocol.frames import MESSAGE
from fleet.protocol.state import FINAL, NODE_LOG, PID

MOST_TOLD = 20  # of other runs: one write of the answer


def detach(keep: int) -> None:
    """Become a session of our own with nothing of the caller's open but `keep`."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != keep:
            with suppress(OSError):
                os.close(int(name))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def supervise(
    spec: "run.Starting", temporary: str, guardian: "dict[str, int | None]", writer: int, kernel: KernelLog
) -> None:
    """The supervisor's life: publish the folder, start the engine, answer, keep it."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NAME, b"fleet-supervise")
    signals = Signals()
    folder = None
    try:
        write_json(os.path.join(temporary, PID), dict(identity(os.getpid()), guardian=guardian, boot=boot_id()))
        folder = publish_folder(temporary, spec["run"])
        if spec.get("alone"):
            be_alone(spec)
        beginning = Beginning(spec, folder)
        engine = start_engine(spec, folder)
    except (Refused, OSError, ValueError) as error:
        remove_tree(temporary)
        why = error if isinstance(error, Refused) else Refused("cannot start the run: %s" % error)
        if folder is not None:
            write_final(folder, final_status("stopped", why.message, []))
        message = dict(failed(why), forbidden=isinstance(why, Forbidden))
        if isinstance(why, Occupied):
            message = {"event": "neighbours", "runs": why.runs[:MOST_TOLD]}
        os.write(writer, json.dumps(message).encode())
        return
    supervisor = Supervisor(
        spec, folder, engine, signals, beginning, kernel
    )  # its clock runs before anybody knows of it
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
    guardian, kernel = identity(os.getpid()), KernelLog()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            supervise(spec, temporary, guardian, writer, kernel)
            status = 0
        finally:
            os._exit(status)
    born = start_time(child) or 0
    os.close(writer)
    for signum in (signal.SIGTERM, signal.SIGINT):  # until this process ends: by then another one may have its number
        signal.signal(signum, lambda got, _frame: send_signal(child, born, got))
    _pid, status = os.waitpid(child, 0)
    folder = run_folder(spec["run"])
    ours = status != 0 and folder and read_json(os.path.join(folder, PID)).get("pid") == child
    if ours and folder and read_status(folder).get("state") not in FINAL:
        how = "by signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else "by a fault of its own"
        bury(spec["run"], folder, spec["grace"], "the supervisor was ended " + how, [os.getpid()], kernel=kernel)
    from fleet.node.run.look.prune import KEPT_RUNS, prune_runs  # not before a run is over

    with suppress(OSError):  # another run's guardian does so, too
        prune_runs(KEPT_RUNS - 1)  # alongside this one


def answer() -> None:
    spec: run.Starting = start(heartbeat=False)
    spec["umask"] = os.umask(0o077)
    temporary = temporary_folder(spec)
    try:
        fill_folder(temporary, spec)
    except (OSError, ValueError) as error:
        remove_tree(temporary)
        where = "cannot create the run's folder in %s: %s" % (runs_root(), error)
        send_json(failed(Refused(where, "is the home folder there writable, its disk full?")))
        return
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            guard(spec, temporary, writer)
        finally:
            os._exit(0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who follows the run from here on waits for no guardian
    os.close(writer)
    start_heartbeat()
    # one message, not up to end of file: an engine that hangs on its way into a dead mount holds the other end
    data = os.read(reader, 65536)
    if data:
        frame(MESSAGE, data)
    else:
        send_json(failed(Refused("the supervisor died before it could start the run")))


def main() -> None:
    answer()
    send_exit(0)
