"""Stops a run on this node, whether its supervisor is alive, was killed, hangs, or has not started yet.

spec: {"run", "grace": s, "reason", "end", "attempt": the last attempt to stop; without it no attempt may follow,
"verdict": how the run ended, if it is over}.
Sends J {"event": "stopped", "left": [pids], "was", "stuck", "verdict": the one on record here}. was: "running"; "gone"
(the run had ended already, or a later attempt is under way); "unknown" (the run was never started here: the file
~/.fleet/runs/RUN@NODE.stop, the tombstone, now makes a late supervise.py refuse the run). left: pids that SIGKILL did
not end; stuck: texts about these processes, if there are any.
"""

import os
import signal
from contextlib import suppress

from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.errors import answer
from fleet.node.base.files import remove_file
from fleet.node.base.processes import send_signal, stuck
from fleet.node.base.run_folder import (
    MOST_STUCK,
    NODE,
    attempt_of,
    is_forbidden,
    live_supervisors,
    next_attempt_state,
    own_runs,
    put_verdict,
    read_json,
    read_status,
    request_stop,
    run_folder,
    runs_root,
    since_boot,
    status_and_life,
    tombstone,
    verdict_of,
)
from fleet.node.base.state_folder import own_home
from fleet.node.base.types import facts, run, run_specs
from fleet.node.run.marks import marked
from fleet.node.run.start.ending import Ending, descendants, end_and_record, end_unsupervised
from fleet.protocol.state import FINAL, RUNS, SPEC

# after the grace period: so long a supervisor may take to begin the stop; to end the run once it has begun the stop
MARGIN, ENDING_MARGIN = 5.0, 13.0
OLD_SECONDS = 86400


def forbid(run: str, attempt: "int | None") -> None:
    """Writes the tombstone of a run atomically, unless there is one that forbids as much. attempt: the last attempt to
    forbid; None: all. Removes tombstones that are older than a day."""
    root = own_home(RUNS)
    if attempt is None or not is_forbidden(run, attempt):
        new = os.path.join(root, ".%s.%d" % (os.path.basename(tombstone(run)), os.getpid()))
        with open(new, "w") as f:
            f.write("" if attempt is None else str(attempt))
        os.rename(new, tombstone(run))
    for name in os.listdir(root):
        path = os.path.join(root, name)
        with suppress(FileNotFoundError):  # another process has just removed it
            if name.endswith("@%s.stop" % NODE) and CLOCK.time() - os.stat(path).st_mtime > OLD_SECONDS:
                os.unlink(path)


def ask(folder: str, grace: float, reason: str, end: "run.Verdict | None", clock: Clock) -> bool:
    """Requests a stop from the supervisor, and waits. Returns whether the supervisor or its guardian wrote how the run
    ended."""
    request_stop(folder, grace, reason, end)
    # the supervisor sends SIGKILL after `grace`: if it takes longer, it is itself stopped (SIGSTOP) or hangs
    began, margin = clock.monotonic(), MARGIN
    while clock.monotonic() < began + grace + margin:
        status, kept = status_and_life(folder)
        if status.get("state") in FINAL or not kept:
            return status.get("state") in FINAL
        if status.get("state") == "stopping":
            margin = ENDING_MARGIN  # the supervisor waits for slow processes, for which this process would wait, too
        clock.sleep(0.02)
    return False


def stop(spec: "run_specs.StopSpec", clock: Clock = CLOCK) -> "tuple[list[int], str]":
    """Stops a run. Returns ("left", "was"), see above."""
    run, grace, reason = spec["run"], float(spec.get("grace") or 0), spec.get("reason") or "stopped"
    attempt, end, folder = spec.get("attempt"), spec.get("end"), run_folder(run)
    if folder is None:
        with suppress(OSError):
            forbid(run, attempt)
        # the folder may have appeared before the tombstone did
        folder = run_folder(run)
        if folder is None:
            ending = Ending(run, grace, clock=clock)  # if ~/.fleet was lost, the run's processes still have its marks
            return ending.finish(), "running" if ending.signals_sent else "unknown"
        remove_file(tombstone(run))
    begun = read_json(os.path.join(folder, SPEC))
    about = begun.get("about") or {}
    if attempt is not None and attempt < attempt_of(begun):
        return [], "gone"
    if attempt is None and (about.get("max_restarts") or about.get("spares")):
        forbid(run, None)
        if end and next_attempt_state(folder):
            put_verdict(folder, dict(end, attempt=attempt_of(read_json(os.path.join(folder, SPEC)))))
    if read_status(folder).get("state") in FINAL:
        # if an attempt is given, ends only leftovers on record, not processes of another attempt that is just beginning
        left = read_status(folder).get("left") if attempt is not None else True
        return Ending(run, grace, clock=clock).finish() if left else [], "gone"
    if live_supervisors(folder) and ask(folder, grace, reason, end, clock):
        return read_status(folder).get("left") or [], "running"
    deaf = live_supervisors(folder)
    if not deaf:
        return end_unsupervised(run, folder, grace, clock)["left"], "running"
    below = descendants([who["pid"] for who in deaf])
    for who in reversed(deaf):
        send_signal(who["pid"], who["start"], signal.SIGKILL)
    status = end_and_record(run, folder, 0, reason, state="stopped", cause="asked", end=end, clock=clock)
    for pid, born in below.items():
        send_signal(pid, born, signal.SIGKILL)
    return status["left"], "running"


def stopped(spec: "run_specs.StopSpec", clock: Clock = CLOCK) -> "run.Stopped":
    left, was = stop(spec, clock)
    message: run.Stopped = {"event": "stopped", "left": left, "was": was}
    folder, verdict = run_folder(spec["run"]), spec.get("verdict")
    if folder is not None and verdict and read_status(folder).get("state") in FINAL:  # no later attempt is under way
        put_verdict(folder, verdict)
        message["verdict"] = verdict_of(folder)  # type: ignore[typeddict-item]
    if left:
        message["stuck"] = list(map(stuck, left[:MOST_STUCK]))
    return message


def remains() -> "list[facts.Remains]":
    """Ends runs whose supervisor and guardian were both killed. Returns these runs, and ended runs of which processes
    are alive that SIGKILL did not end."""
    found: list[facts.Remains] = []
    for name in own_runs():
        with suppress(Exception):  # a damaged folder must not prevent another run's start
            found += remains_of(os.path.join(runs_root(), name))
    return found


def remains_of(folder: str) -> "list[facts.Remains]":
    """Does the same as remains() for one run's folder."""
    spec = read_json(os.path.join(folder, SPEC))
    run = spec.get("run")
    if not isinstance(run, str) or run != os.path.basename(folder).partition("@")[0]:
        return []  # the folder is a user's copy of a run's folder
    if spec.get("node") != NODE or not since_boot(folder):
        return []
    status, kept = status_and_life(folder)
    if kept:
        return []
    over = status.get("state") in FINAL
    if not over:
        status = end_unsupervised(run, folder)
    left = sorted(marked(run)) if status.get("left") else []
    return [{"run": run, "ended": not over, "left": list(map(stuck, left[:MOST_STUCK]))}] if left or not over else []


def main() -> None:
    answer(stopped)
