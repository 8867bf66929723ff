"""What is left of runs on this node that nobody there keeps any more: ended here, before another run begins."""

import os

from fleet.node.run.ending import LEFTOVER_GRACE, bury
from fleet.node.run.marks import marked
from fleet.node.run.run_folder import (
    NODE,
    TOLD,
    owners,
    read_json,
    read_status,
    runs_root,
    since_boot,
    stuck,
)
from fleet.protocol.state import FINAL, SPEC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleet.protocol.messages.facts import Remains


def remains() -> "list[Remains]":
    """Ends runs whose supervisor and guardian were both killed; tells of them, and of processes that would not die."""
    try:
        names = sorted(os.listdir(runs_root()))
    except OSError:
        return []
    found: list[Remains] = []
    for name in names:
        try:
            if name[0] != ".":
                found += remains_of(os.path.join(runs_root(), name))
        except Exception:
            pass  # what holds something else than it should keeps no run from its start
    return found


def remains_of(folder: str) -> "list[Remains]":
    """One, or none."""
    spec = read_json(os.path.join(folder, SPEC))
    run = spec.get("run")
    if not isinstance(run, str) or run != os.path.basename(folder).partition("@")[0]:
        return []  # somebody's copy of one
    if spec.get("node") != NODE or not since_boot(folder) or owners(folder):
        return []
    status = read_status(folder)  # behind the look at its owners: they may have written their last
    over = status.get("state") in FINAL
    if not over:
        if owners(folder):
            return []  # another attempt has just taken the place of the one that was looked at
        status = bury(run, folder, LEFTOVER_GRACE, "its supervisor and guardian were killed")
    left = sorted(marked(run)) if status.get("left") else []
    return [{"run": run, "ended": not over, "left": list(map(stuck, left[:TOLD]))}] if left or not over else []
