"""Helps node programs that start processes with a mark, and end them all when the head is gone.

All these processes have `spec["mark"]` in their environment, as FLEET_EXEC_ID. `spec["grace"]` is the number of seconds
between SIGTERM and SIGKILL for those that are left at the end, 0 by default.
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

stopped = threading.Event()


def begin_marked(on_stop: "Callable[[Any], None] | None" = None) -> "Any":
    """Returns the spec, and sends heartbeats from then on. The end of the control lines sets `stopped`, then calls
    on_stop(spec)."""
    spec = start()

    def gone() -> None:
        stopped.set()
        if on_stop is not None:
            on_stop(spec)

    listen(None, gone)
    return spec


def locked(fd: int, kind: int, seconds: float, waiting: "Callable[[], None] | None" = None) -> bool:
    """Returns whether the lock was taken in `seconds`. Calls waiting() once if it is not free at once."""
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
    """Calls take() with the output of a process until it has ended. Returns False if the head requested a stop before
    that. Does not wait for processes that it started and that hold its output open."""
    assert child.stdout
    fd, ended = child.stdout.fileno(), threading.Event()

    def read() -> None:
        over, data = False, b"?"
        while data and not over:
            over = ended.is_set()  # its whole output is in the pipe now
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
    """Ends all processes with the mark."""
    end_all(lambda: with_env("FLEET_EXEC_ID", spec["mark"]), grace)


def finish_marked(spec: "Any", answer: "dict[str, Any] | None", status: int = 0) -> None:
    """Sends the answer and the exit code, then ends all processes with the mark."""
    with suppress(OSError):  # the head is gone
        if answer:
            send_json(answer)
        send_exit(status)
    end_marked(spec, spec.get("grace", 0.0) if stopped.is_set() else 0.0)
