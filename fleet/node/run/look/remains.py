"""Ends what is left of runs on this node that no process keeps any more, before another run begins."""

import os
from contextlib import suppress

from fleet.node.base.processes import stuck
from fleet.node.base.run_folder import NODE, TOLD, own_runs, read_json, runs_root, since_boot, standing
from fleet.node.base.types import facts
from fleet.node.run.marks import marked
from fleet.protocol.state import FINAL, SPEC


def remains() -> "list[facts.Remains]":
    """Ends runs whose supervisor and guardian were both killed; reports them, and processes that would not die."""
    found: list[facts.Remains] = []
    for name in own_runs():
        with suppress(Exception):  # what holds something else than it should keeps no run from its start
            found += remains_of(os.path.join(runs_root(), name))
    return found


def remains_of(folder: str) -> "list[facts.Remains]":
    """One, or none."""
    spec = read_json(os.path.join(folder, SPEC))
    run = spec.get("run")
    if not isinstance(run, str) or run != os.path.basename(folder).partition("@")[0]:
        return []  # a user's copy of one
    if spec.get("node") != NODE or not since_boot(folder):
        return []
    status, kept = standing(folder)
    if kept:
        return []
    over = status.get("state") in FINAL
    if not over:
        from fleet.node.run.start.ending import bury_unkept  # rarely needed, and long

        status = bury_unkept(run, folder)
    left = sorted(marked(run)) if status.get("left") else []
    return [{"run": run, "ended": not over, "left": list(map(stuck, left[:TOLD]))}] if left or not over else []
