"""Starts a run's engine on this node, detached, and supervises it (start/supervisor.py).

spec: {"run", "host", "node_rank", "argv": [...], "env": {}, "env_expand": {}, "cwd", "python", "activate", "ranks": [],
"files": {name: text}, "lease": s|null, "grace": s, "node_timeout": s, "time", "code": {"state", "digest", "settle": s}
or null: delivered code, which is locked while the run begins}. An argv item is a string, {"run_dir": name} (a path in
the run's folder) or {"python": true} (the interpreter that runs this).
Sends J {"event": "started", "pid", "dir"}, {"event": "neighbours", "runs": the live runs that prevent the start of an
"alone" run} or {"event": "failed", "message", "hint"}, then X.

There are three processes. The foreground process sends the response and ends. The guardian only waits for the
supervisor, and cleans up if the supervisor is killed. The supervisor is the engine's parent. None of the three has the
run's mark. The final status.json is {"state": "exited"|"stopped"|"lost", "engine_status": 0..255|null, "signal":
n|null, "reason", "time", "left": [pids], "cause", "began": see run_folder.py, "disk_full": true if the disk is full}.
"""

import glob
import os
import signal
import time
from contextlib import suppress

from fleet.node.base import json
from fleet.node.base.errors import Refused, failed
from fleet.node.base.files import remove_tree
from fleet.node.base.processes import boot_id, forked, identity, send_signal, start_time
from fleet.node.base.run_folder import (
    NODE,
    final_status,
    live_supervisors,
    next_attempt_state,
    note,
    own_runs,
    read_json,
    read_status,
    run_folder,
    runs_root,
    write_final,
    write_json,
)
from fleet.node.base.types import run_specs
from fleet.node.base.wire import frame, send_exit, send_json, start, start_heartbeat
from fleet.node.facts.environment import working_folder
from fleet.node.run.neighbours import Occupied, be_alone
from fleet.node.run.start.containers import CLIENT_SECONDS, REMOVE_SECONDS, Apart, chosen
from fleet.node.run.start.ending import end_and_record
from fleet.node.run.start.engine import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NAME,
    CodeLock,
    Forbidden,
    fill_folder,
    prctl,
    publish_folder,
    start_engine,
    temporary_folder,
)
from fleet.node.run.start.kernel_log import KernelLog
from fleet.node.run.start.supervisor import Signals, Supervisor
from fleet.protocol.codes import FOR_RANKS
from fleet.protocol.frames import MESSAGE
from fleet.protocol.state import ATTEMPT, FINAL, PID, SPEC, STATUS

MOST_NAMED = 20  # other runs that a response names: it must fit into one write
# limits for folders of ended runs: number, bytes, age. A folder younger than FETCH_SECONDS is not removed for its size
KEPT_RUNS, KEPT_BYTES, KEPT_SECONDS, FETCH_SECONDS = 20, 1 << 30, 30 * 86400.0, 600.0


def detach(keep: int) -> None:
    """Puts this process into its own session, and closes all inherited files except `keep`."""
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
    spec: "run_specs.Starting", temporary: str, guardian: "dict[str, int | None]", writer: int, kernel: KernelLog
) -> None:
    """Is the supervisor's main function: publishes the run's folder, starts the engine, sends the response, and
    supervises the engine. temporary: the folder before that. guardian: its identity. writer: where the response goes.
    kernel: reads the kernel log since the start."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NAME, b"fleet-supervise")
    signals = Signals()
    folder = None
    try:
        write_json(os.path.join(temporary, PID), dict(identity(os.getpid()), guardian=guardian, boot=boot_id()))
        folder = publish_folder(temporary, spec["run"])
        if spec.get("alone"):
            be_alone(spec)
        code_lock = CodeLock(spec, folder)
        engine = start_engine(spec, folder)
    except (Refused, OSError, ValueError) as error:
        remove_tree(temporary)
        why = error if isinstance(error, Refused) else Refused("cannot start the run: %s" % error)
        if folder is not None:
            write_final(folder, final_status("stopped", why.message, []))
        message = dict(failed(why), forbidden=isinstance(why, Forbidden))
        if isinstance(why, Occupied):
            message = {"event": "neighbours", "runs": why.runs[:MOST_NAMED]}
        os.write(writer, json.dumps(message).encode())
        return
    supervisor = Supervisor(
        spec, folder, engine, signals, code_lock, kernel
    )  # its clock starts before the response is sent
    os.write(writer, json.dumps({"event": "started", "pid": os.getpid(), "dir": folder}).encode())
    os.close(writer)
    try:
        supervisor.run()
    except BaseException as error:
        note(folder, "the supervisor failed: %r" % error)
        raise


def guard(spec: "run_specs.Starting", temporary: str, writer: int) -> None:
    """Is the guardian's main function: starts the supervisor. Ends the run if the supervisor is killed."""
    detach(writer)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NAME, b"fleet-guardian")
    guardian, kernel = identity(os.getpid()), KernelLog()
    child = forked(lambda: supervise(spec, temporary, guardian, writer, kernel))
    born = start_time(child) or 0
    os.close(writer)
    # the handlers stay after the supervisor's end, when its pid may be another process's: send_signal() compares `born`
    for signum in (signal.SIGTERM, signal.SIGINT, *FOR_RANKS):
        signal.signal(signum, lambda got, _frame: send_signal(child, born, got))
    _pid, status = os.waitpid(child, 0)
    folder = run_folder(spec["run"])
    ours = status != 0 and folder and read_json(os.path.join(folder, PID)).get("pid") == child
    if ours and folder and read_status(folder).get("state") not in FINAL:
        how = "by signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else "by a fault of its own"
        end_and_record(
            spec["run"], folder, spec["grace"], "the supervisor was ended " + how, [os.getpid()], kernel=kernel
        )
    with suppress(OSError):  # another run's guardian may remove the same folders
        prune_runs(KEPT_RUNS - 1)  # this run is kept, too


# -- runs that have ended are kept for a while ---------------------------------------------------------------
def has_ended(folder: str) -> bool:
    """Returns whether the folder is of a run of this node that has no live process, and whose next attempt is not
    about to begin."""
    if (
        read_json(os.path.join(folder, SPEC)).get("node") != NODE
        or live_supervisors(folder)
        or next_attempt_state(folder)
    ):
        return False
    status = read_status(folder)
    return (
        status.get("state") in FINAL
        and not status.get("left")
        or read_json(os.path.join(folder, PID)).get("boot", boot_id()) != boot_id()
    )


def disk_size(folder: str) -> int:
    """Returns the bytes on disk of the files in a folder."""
    return sum(os.lstat(os.path.join(folder, name)).st_blocks * 512 for name in os.listdir(folder))


def prune_runs(keep: int = KEPT_RUNS, size: int = KEPT_BYTES) -> None:
    """Removes folders of ended runs of this node, the oldest first, beyond the limits of number, size and age. Folders
    that ranks made inside do not count for the size, as they may be checkpoints."""
    folders = [os.path.join(runs_root(), name) for name in own_runs()]
    ended = [(os.stat(os.path.join(folder, STATUS)).st_mtime, folder) for folder in folders if has_ended(folder)]
    for _, folder in ended:
        cut_short = read_status(folder).get("state") not in FINAL  # the node's restart ended the run
        container = Apart.of(str(read_json(os.path.join(folder, SPEC)).get("run"))) if cut_short else None
        if container:
            container.is_gone([], CLIENT_SECONDS + REMOVE_SECONDS)
    for number, (when, folder) in enumerate(sorted(ended, reverse=True)):
        size -= sum(map(disk_size, [folder, *glob.glob(os.path.join(folder, ATTEMPT + "*"))]))
        age = time.time() - when
        # logs of a run that has just ended may still be fetched
        if (number >= keep or age > (FETCH_SECONDS if size < 0 else KEPT_SECONDS)) and has_ended(folder):
            remove_tree(folder)


def answer() -> None:
    spec: run_specs.Starting = start(heartbeat=False)
    spec["umask"] = os.umask(0o077)
    temporary = temporary_folder(spec)
    try:
        if spec.get("container"):
            spec["container"] = chosen(spec, working_folder(spec["cwd"]))
    except Refused as error:
        send_json(failed(error))
        return
    try:
        fill_folder(temporary, spec)
    except (OSError, ValueError) as error:
        remove_tree(temporary)
        where = "cannot create the run's folder in %s: %s" % (runs_root(), error)
        send_json(failed(Refused(where, "is the home folder there writable, its disk full?")))
        return
    reader, writer = os.pipe()
    forked(lambda: guard(spec, temporary, writer))
    # this process may follow the run next, and does not reap the guardian
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.close(writer)
    start_heartbeat()
    # reads one message, and not up to end of file, as an engine that hangs in a dead mount keeps the pipe open
    data = os.read(reader, 65536)
    if data:
        frame(MESSAGE, data)
    else:
        send_json(failed(Refused("the supervisor died before it could start the run")))


def main() -> None:
    answer()
    send_exit(0)
