"""Whether another attempt of a run can begin on this node: nothing of earlier ones is left, a port is free for it.

spec: {"run", "attempt", "ports": [candidates], none where ranks do not meet, "pause": seconds to wait first, none if it
is missing}. While it waits the run is known here as restarting; it is over when the head goes away, and the pause when
the run is stopped for good. Answers J {"event": "ready", "left": [pids], "port": the first that is free or null,
"forbidden": whether the run was stopped for good meanwhile}.
"""

import os
import time

from fleet.node.base.wire import control_lines, send_exit, send_json, start, start_thread
from fleet.node.run.rendezvous import listen_everywhere
from fleet.node.run.run_folder import boot_id, identity, is_forbidden, run_folder, write_json
from fleet.node.run.stop import stop
from fleet.protocol.state import NEXT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from fleet.protocol.messages import run

say: "Callable[[run.Ready], None]" = send_json
POLL_SECONDS = 0.1


def is_free(port: int) -> bool:
    try:
        listen_everywhere(port).close()
    except OSError:
        return False
    return True


def end_with_head() -> None:
    for _message in control_lines():
        pass
    os._exit(0)


def be_seen(folder: str) -> None:
    try:
        write_json(os.path.join(folder, NEXT), dict(identity(os.getpid()), boot=boot_id()))
    except OSError:
        pass  # a full disk: it is not


def wait(run: str, attempt: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not is_forbidden(run, attempt):
        time.sleep(POLL_SECONDS)


def main() -> None:
    spec: run.ReadySpec = start()
    start_thread(end_with_head)
    name, attempt, pause = spec["run"], spec["attempt"], spec.get("pause", 0.0)
    left: list[int] = []
    folder = run_folder(name)
    if folder is not None:
        if pause > 0:
            be_seen(folder)
        left, _was = stop({"run": name, "grace": 0.0, "reason": "another attempt begins", "attempt": attempt - 1})
    wait(name, attempt, pause)
    port = next((port for port in spec["ports"] if is_free(port)), None)
    say({"event": "ready", "left": left, "port": port, "forbidden": is_forbidden(name, attempt)})
    send_exit(0)
