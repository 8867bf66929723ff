"""Programs that start others under a mark, and end them all when the head goes away.

`spec["mark"]` is in the environment of everything they start, as FLEET_EXEC_ID; `spec["grace"]`: seconds between
SIGTERM and SIGKILL for what is still there in the end, 0 by default.
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
    """The spec, with a heartbeat; the end of the control lines sets `stopped`, then calls on_stop(spec)."""
    spec = start()

    def gone() -> None:
        stopped.set()
        if on_stop is not None:
            on_stop(spec)

    listen(None, gone)
    return spec


def locked(fd: int, kind: int, seconds: float, waiting: "Callable[[], None] | None" = None) -> bool:
    """Is true where this lock was taken in that time; waiting() is called once if it is not free at once."""
    if try_lock(fd, kind):
        return True
    if waiting is not None:
        waiting()
    got = wait_for(fd, kind, seconds, lambda: stopped.wait(0.2))
    if not got and stopped.is_set():
        raise Refused("interrupted", None)
    return got


def started(argv: "list[str]", env: "dict[str, str]", cwd: str) -> "subprocess.Popen[bytes]":
    """In a session of its own; both its outputs in one pipe."""
    out = subprocess.PIPE
    return subprocess.Popen(
        argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
    )


def heard(child: "subprocess.Popen[bytes]", take: "Callable[[bytes], object]") -> bool:
    """Hand over what it prints until it has ended; False, and it may not have, where the head requested the stop. What
    it started and left may hold its output open: that is not waited for."""
    assert child.stdout
    fd, ended = child.stdout.fileno(), threading.Event()

    def read() -> None:
        over, data = False, b"?"
        while data and not over:
            over = ended.is_set()  # all that it printed is there by now
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
    """Ends all that runs under the mark."""
    end_all(lambda: with_env("FLEET_EXEC_ID", spec["mark"]), grace)


def finish_marked(spec: "Any", answer: "dict[str, Any] | None", status: int = 0) -> None:
    """The last output, and the end of whatever was started."""
    with suppress(OSError):  # the head is gone
        if answer:
            send_json(answer)
        send_exit(status)
    end_marked(spec, spec.get("grace", 0.0) if stopped.is_set() else 0.0)
