"""Runs that have ended are kept for a while."""

import glob
import os
import time

from fleet.node.base.files import remove_tree
from fleet.node.base.processes import boot_id
from fleet.node.base.run_folder import NODE, awaited, own_runs, owners, read_json, read_status, runs_root
from fleet.protocol.state import ATTEMPT, FINAL, PID, SPEC, STATUS

KEPT_RUNS, KEPT_BYTES, KEPT_SECONDS, FETCH_SECONDS = 20, 1 << 30, 30 * 86400.0, 600.0


def has_ended(folder: str) -> bool:
    """Is true for the folder of a run of this node of which nothing is alive any more, or will be."""
    if read_json(os.path.join(folder, SPEC)).get("node") != NODE or owners(folder) or awaited(folder):
        return False
    status = read_status(folder)
    return (
        status.get("state") in FINAL
        and not status.get("left")
        or read_json(os.path.join(folder, PID)).get("boot", boot_id()) != boot_id()
    )


def disk_size(folder: str) -> int:
    """Returns the bytes on disk of the files in a folder."""
    return sum(os.lstat(os.path.join(folder, name)).st_blocks * 512 for name in os.listdir(folder))


def prune_runs(keep: int = KEPT_RUNS, size: int = KEPT_BYTES) -> None:
    """Take away runs of this node that have ended, the oldest first: beyond so many, so much, or so long ago.
    What ranks put below folders of their own there counts for nothing: it may be what they go on from."""
    folders = [os.path.join(runs_root(), name) for name in own_runs()]
    ended = [(os.stat(os.path.join(folder, STATUS)).st_mtime, folder) for folder in folders if has_ended(folder)]
    for number, (when, folder) in enumerate(sorted(ended, reverse=True)):
        size -= sum(map(disk_size, [folder, *glob.glob(os.path.join(folder, ATTEMPT + "*"))]))
        age = time.time() - when
        # what ended just now may still be fetched
        if (number >= keep or age > (FETCH_SECONDS if size < 0 else KEPT_SECONDS)) and has_ended(folder):
            remove_tree(folder)
