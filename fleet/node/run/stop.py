"""Stops a run on this node, whether its supervisor lives, was killed, hangs, or has not started yet.

spec: {"run", "grace": s, "reason", "attempt": the last one that is meant; without it none is to follow}.
Answers J {"event": "stopped", "left": [pids], "was", "stuck"}: was "running"; "gone" (it had ended already, or a later
attempt is under way); "unknown" (never started here: a file ~/.fleet/runs/RUN@NODE.stop now makes a supervise that
comes late refuse). left: pids that would not die; stuck: what they do instead, where there are any.
"""

import os
import signal
import time

from fleet.node.base.wire import send_exit, send_json, start
from fleet.node.run.ending import Ending, bury, descendants, send_signal
from fleet.node.run.run_folder import (
    NODE,
    TOLD,
    attempt_of,
    owners,
    read_json,
    read_status,
    request_stop,
    run_folder,
    runs_root,
    stuck,
    tombstone,
)
from fleet.protocol.state import FINAL, SPEC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from fleet.protocol.messages import run, values

say: "Callable[[run.Stopped | values.Failed], None]" = send_json
MARGIN = 5.0
OLD_SECONDS = 86400


def forbid(run: str, attempt: "int | None") -> None:
    """Leave the tombstone, and clear away those of yesterday."""
    root = runs_root()
    os.makedirs(root, 0o700, exist_ok=True)
    with open(tombstone(run), "w") as f:
        f.write("" if attempt is None else str(attempt))
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if name.endswith("@%s.stop" % NODE) and time.time() - os.stat(path).st_mtime > OLD_SECONDS:
            os.unlink(path)


def may_start_again(folder: str) -> bool:
    about = read_json(os.path.join(folder, SPEC)).get("about") or {}
    return bool(about.get("max_restarts") or about.get("spares"))


def ask(folder: str, grace: float, reason: str) -> bool:
    """Ask the supervisor, wait for it; True when it (or its guardian) has said how the run ended."""
    request_stop(folder, grace, reason)
    # TERM for `grace`, then KILL: a supervisor that needs longer is itself stopped or stuck
    deadline = time.monotonic() + grace + MARGIN
    while time.monotonic() < deadline:
        if read_status(folder).get("state") in FINAL:
            return True
        if not owners(folder):
            return read_status(folder).get("state") in FINAL
        time.sleep(0.02)
    return False


def stop(spec: "run.StopSpec") -> "tuple[list[int], str]":
    run, grace, reason = spec["run"], float(spec.get("grace") or 0), spec.get("reason") or "stopped"
    attempt, folder = spec.get("attempt"), run_folder(run)
    if folder is None:
        try:
            forbid(run, attempt)
        except OSError:
            pass
        # it may have appeared meanwhile
        folder = run_folder(run)
        if folder is None:
            return Ending(run, grace).finish(), "unknown"
        os.unlink(tombstone(run))
    if attempt is not None and attempt < attempt_of(read_json(os.path.join(folder, SPEC))):
        return [], "gone"
    if attempt is None and may_start_again(folder):
        forbid(run, None)
    if read_status(folder).get("state") in FINAL:
        # of an attempt what its end has left, not what another begins just now
        left = read_status(folder).get("left") if attempt is not None else True
        return Ending(run, grace).finish() if left else [], "gone"
    if owners(folder) and ask(folder, grace, reason):
        return read_status(folder).get("left") or [], "running"
    deaf = owners(folder)
    below = descendants([who["pid"] for who in deaf])
    for who in reversed(deaf):
        send_signal(who["pid"], who["start"], signal.SIGKILL)
    status = bury(run, folder, 0 if deaf else grace, reason, state="stopped", cause="asked")
    for pid, born in below.items():
        send_signal(pid, born, signal.SIGKILL)
    return status["left"], "running"


def answer() -> int:
    spec = start()
    try:
        left, was = stop(spec)
    except ValueError as error:
        say({"event": "failed", "message": str(error), "hint": None})
        return 1
    said: run.Stopped = {"event": "stopped", "left": left, "was": was}
    if left:
        said["stuck"] = list(map(stuck, left[:TOLD]))
    say(said)
    return 0


def main() -> None:
    try:
        send_exit(answer())
    except OSError:
        pass
