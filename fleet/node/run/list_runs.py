"""Lists the runs of this node, each with its description, its state, and the last line that it wrote.

spec: {"prefix": the beginning of the runs' ids, "live": true: only runs that have not ended}. Sends J {"event": "runs",
"runs": [...]}: see RunHere in fleet/protocol/messages/run.py.
"""

import os
import time

from fleet.node.base.errors import answer
from fleet.node.base.run_folder import (
    NODE,
    attempt_of,
    final_status,
    has_protocol,
    lease_of,
    next_attempt_state,
    only,
    own_runs,
    rank_records,
    ranks_up,
    read_json,
    runs_root,
    status_and_life,
    verdict_of,
    why_gone,
    written_at,
)
from fleet.node.base.types import Any, run
from fleet.protocol.state import FINAL, LEASE, LISTED, METRICS, NODE_LOG, SPEC, is_log, is_run_id

LAST_BYTES, LAST_CHARACTERS = 4096, 200


def last_line(path: str) -> str:
    """Returns the last line of a log, as a terminal would show it."""
    with open(path, "rb") as f:
        f.seek(max(0, os.fstat(f.fileno()).st_size - LAST_BYTES))
        text = f.read().decode("utf-8", "replace").rstrip()
    return text.rpartition("\n")[2].rstrip("\r").rpartition("\r")[2][-LAST_CHARACTERS:]


def written_last(folder: str) -> "tuple[float | None, str]":
    """Returns (the seconds since a rank last wrote, the last line of that rank), or (None, "") if no rank has written.
    Ignores the launcher's own log."""
    times = {}
    for name in filter(is_log, os.listdir(folder)):
        found = os.stat(os.path.join(folder, name))
        if found.st_size and name not in (NODE_LOG, METRICS):
            times[name] = found.st_mtime
    if not times:
        return None, ""
    newest = max(times, key=lambda name: times[name])
    return max(0.0, time.time() - times[newest]), last_line(os.path.join(folder, newest))


def unheard(folder: str) -> "float | None":
    """Returns the seconds since a head renewed the lease, or None if that is unknown."""
    renewed = written_at(os.path.join(folder, LEASE))
    return None if renewed is None else max(0.0, time.time() - renewed)


def described(
    folder: str, spec: "dict[str, Any]", status: "dict[str, Any]", alive: bool, verdict: Any
) -> "run.RunHere":
    silent, last = written_last(folder)
    ended, attempt = rank_records(folder), attempt_of(spec)
    if not has_protocol(spec):
        spec, status, ended, verdict = only(spec, *LISTED), only(status, "state"), [], None
    return {
        "run": spec["run"],
        "protocol": spec.get("protocol", 0),
        "attempt": attempt,
        "host": spec.get("host") or NODE,
        "node_rank": spec.get("node_rank") or 0,
        "ranks": spec.get("ranks") or [],
        "devices": spec.get("devices"),
        "cwd": spec.get("cwd"),
        "about": spec.get("about"),
        "lease": lease_of(folder, spec),
        "grace": spec.get("grace") or 0.0,
        "node_timeout": spec.get("node_timeout") or 0.0,
        "status": status,  # type: ignore[typeddict-item]
        "alive": alive,
        "up": ranks_up(folder) if alive else 0,
        "ended": [dict(record, event="rank") for record in ended],  # type: ignore[misc]
        "silent": silent,
        "last": last,
        "term": read_json(os.path.join(folder, LEASE)).get("term", 0),
        "verdict": verdict,
        "unheard": None if status.get("state") in FINAL or not alive else unheard(folder),
    }


def one(name: str, live: bool) -> "run.RunHere | None":
    """Returns the run in the folder `name`, or None if the run is not this node's, or has ended and `live` is True."""
    folder = os.path.join(runs_root(), name)
    spec = read_json(os.path.join(folder, SPEC))
    if spec.get("node") != NODE or spec.get("run") != name.partition("@")[0]:
        return None
    status, alive = status_and_life(folder)
    verdict = verdict_of(folder)
    next_one = next_attempt_state(folder) if status.get("state") in FINAL and not verdict else None
    if next_one:
        status, alive = dict(status, state=next_one), True
    if live and status.get("state") in FINAL:
        return None
    if not alive and status.get("state") not in FINAL:
        cause, reason, began = why_gone(folder)
        status = final_status("lost", reason, [], cause, began) if cause == "reboot" else status
    return described(folder, spec, status, alive, verdict)


def runs(prefix: str, live: bool) -> "list[Any]":
    """Returns the runs. For a run with an invalid folder, the list has only {"run": its id}, so that the other runs are
    listed all the same."""
    found: list[Any] = []
    for name in own_runs():
        if not name.startswith(prefix) or not is_run_id(name.partition("@")[0]):
            continue
        try:
            found.append(one(name, live))
        except OSError:
            pass  # the folder is being removed
        except Exception:
            found.append({"run": name.partition("@")[0]})
    return [run for run in found if run is not None]


def main() -> None:
    answer(lambda spec: {"event": "runs", "runs": runs(spec["prefix"], spec["live"])})
