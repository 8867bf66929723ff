"""Runs that lost their head on this machine a moment ago: their nodes wait, for as long as their lease lasts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from fleet.errors import Reason
from fleet.events import Notice
from fleet.ops.launch.folder import SIGN_SECONDS, read_object
from fleet.ops.runs.local import followed
from fleet.rules.units import seconds


def left_alone(runs_dir: Path) -> Iterator[Notice]:
    """What to say of each, and what to do."""
    for events in runs_dir.glob("*-*/events.jsonl"):
        folder = events.parent
        if folder.is_symlink() or (folder / "summary.json").exists():
            continue
        lease = read_object(folder / "run.json").get("lease")
        alone = time.time() - os.stat(events).st_mtime
        if not isinstance(lease, int | float) or not SIGN_SECONDS < alone < lease:
            continue
        if not followed(folder) and b'"event": "detached"' not in events.read_bytes():
            text = "run {run} has been without its head for {alone}; if it goes on, its nodes end it after {lease}"
            told = Reason(text, run=folder.name, alone=seconds(round(alone)), lease=seconds(lease))
            yield Notice("warning", told, None, f"fleet attach {folder.name}")
