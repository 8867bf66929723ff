"""Helps node programs that start processes with a mark, and that end all these processes when the head is gone.

Each of these processes has `spec["mark"]` in its environment, as FLEET_EXEC_ID. When the head is gone, processes that
are left get SIGTERM, and SIGKILL after `spec["grace"]` seconds (0 by default).
"""

import os
import select
import subprocess
import threading
from contextlib import suppress

from fleet.node.base.errors import Refused
from fleet.node.base.locks import try_lock, wait_for
from fleet.node.base.processes import end_all, with_env
from fleet.node.base.types import Any, Callable
from fleet.node.base.wire import listen, send_exit, send_json, start, start_thread

stopped = threading.Event()  # set when the control lines end: the head is gone, or requests a stop


def begin_marked(on_stop: "Callable[[Any], None] | None" = None) -> "Any":
    """Begins the program: returns the spec, and sends heartbeats from then on. When the control lines end, it sets
    `stopped`, and then calls on_stop(spec)."""
    spec = start()

    def gone() -> None:
        stopped.set()
        if on_stop is not None:
            on_stop(spec)

    listen(None, gone)
    return spec


def locked(fd: int, kind: int, seconds: float, waiting: "Callable[[], None] | None" = None) -> bool:
    """Tries to lock a file for `seconds`. Returns whether it got the lock. Calls waiting() once if another process
    holds the lock. Raises Refused if `stopped` is set meanwhile. kind: LOCK_EX or LOCK_SH."""
    if try_lock(fd, kind):
        return True
    if waiting is not None:
        waiting()
    got = wait_for(fd, kind, seconds, lambda: stopped.wait(0.2))
    if not got and stopped.is_set():
        raise Refused("interrupted", None)
    return got


def started(argv: "list[str]", env: "dict[str, str]", cwd: str) -> "subprocess.Popen[bytes]":
    """Starts a process in a session of its own, with stdout and stderr in one pipe."""
    out = subprocess.PIPE
    return subprocess.Popen(
        argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
    )


def read_to_end(child: "subprocess.Popen[bytes]", take: "Callable[[bytes], object]") -> bool:
    """Calls take() with the output of a process, until the process has ended. Returns False if `stopped` is set before
    that. Does not wait for the process's own children, which may hold its output open."""
    assert child.stdout
    fd, ended = child.stdout.fileno(), threading.Event()

    def read() -> None:
        over, data = False, b"?"
        while data and not over:
            over = ended.is_set()  # if so, the pipe has all that is left of the process's output
            if select.select([fd], [], [], 0.0 if over else 0.05)[0]:
                data = os.read(fd, 1 << 16)
                if data:
                    take(data)

    reader = start_thread(read)
    while child.poll() is None:
        if stopped.wait(0.05):
            return False
    ended.set()
    while reader.is_alive():
        if stopped.wait(0.05):
            return False
    return True


def end_marked(spec: "Any", grace: float) -> None:
    """Ends all processes with the mark. grace: seconds between SIGTERM and SIGKILL."""
    end_all(lambda: with_env("FLEET_EXEC_ID", spec["mark"]), grace)


def finish_marked(spec: "Any", answer: "dict[str, Any] | None", status: int = 0) -> None:
    """Sends the answer and the exit code, then ends all processes with the mark. Only after a stop do they get the
    grace period: without it they get SIGKILL at once."""
    with suppress(OSError):  # the head is gone
        if answer:
            send_json(answer)
        send_exit(status)
    end_marked(spec, spec.get("grace", 0.0) if stopped.is_set() else 0.0)
