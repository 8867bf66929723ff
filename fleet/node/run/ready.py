"""Prepares this node for another attempt of a run: ends processes of earlier attempts, and finds a free port.

spec: {"run", "attempt": the next attempt, "ports": [candidates], [] if ranks do not meet here, "pause": seconds to wait
first, "part": the fields of SPEC for a spare, which has no folder of the run yet}. "pause" and "part" are optional.
While this program waits, the run's state here is "restarting". After its response the state is "starting", until the
head has begun the attempt. It ends when the head goes away. The pause ends if the run is stopped for good. Sends J
{"event": "ready", "left": [pids that could not be ended], "port": the first free one or null, "forbidden": whether the
run was stopped for good meanwhile}.
"""

import os

from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.errors import Refused
from fleet.node.base.processes import boot_id, identity
from fleet.node.base.run_folder import NODE, final_status, is_forbidden, run_folder, run_names, try_write, write_json
from fleet.node.base.state_folder import own_home
from fleet.node.base.types import run_specs
from fleet.node.base.wire import listen, send_exit, send_json, start
from fleet.node.ports.listeners import listen_everywhere
from fleet.node.run.stop import stop
from fleet.protocol.state import NEXT, PROTOCOL, RESTARTING, RUNS, SPEC, STARTING, STATUS

POLL_SECONDS = 0.1
START_SECONDS = 120.0  # so long the head may take to begin the attempt; after that, it is gone


def is_free(port: int) -> bool:
    try:
        listen_everywhere(port).close()
    except OSError:
        return False
    return True


def stand_by(run: str, part: "run_specs.Part") -> "str | None":
    """Makes a folder for a run that was not on this node before, so that the run can be found and stopped before it
    begins. Returns the folder's path, or None if it cannot be made. part: the fields of SPEC."""
    try:
        folder = os.path.join(own_home(RUNS), run_names(run)[1])
        os.mkdir(folder, 0o700)
        write_json(os.path.join(folder, SPEC), dict(part, run=run, node=NODE, protocol=PROTOCOL))
        write_json(os.path.join(folder, STATUS), final_status("stopped", "it waited for another attempt", []))
    except (OSError, Refused):
        return None
    return folder


def be_seen(folder: str, state: str) -> None:
    """Shows the state of the next attempt to other programs, as long as this process is alive."""
    try_write(os.path.join(folder, NEXT), dict(identity(os.getpid()), boot=boot_id(), state=state))


def wait(run: str, attempt: int, seconds: float, clock: Clock = CLOCK) -> None:
    until = clock.monotonic() + seconds
    while clock.monotonic() < until and not is_forbidden(run, attempt):
        clock.sleep(POLL_SECONDS)


def main() -> None:
    spec: run_specs.ReadySpec = start()
    listen(None, lambda: os._exit(0))
    name, attempt, pause = spec["run"], spec["attempt"], spec.get("pause", 0.0)
    left: list[int] = []
    folder = run_folder(name)
    if folder is None and "part" in spec:
        folder = stand_by(name, spec["part"])
    if folder is not None:
        if pause > 0:
            be_seen(folder, RESTARTING)
        left, _was = stop({"run": name, "grace": 0.0, "reason": "another attempt begins", "attempt": attempt - 1})
    wait(name, attempt, pause)
    port = next((port for port in spec["ports"] if is_free(port)), None)
    forbidden = is_forbidden(name, attempt)
    if folder is not None and not forbidden:
        be_seen(folder, STARTING)
    send_json({"event": "ready", "left": left, "port": port, "forbidden": forbidden})
    if not forbidden:
        CLOCK.sleep(START_SECONDS)
    send_exit(0)
