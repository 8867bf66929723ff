"""A fleet that waits for nothing, for tests of thousands of runs; and the helper that ends what is left of one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host
from fleet.node.gang import verdict
from fleet.ops.run.follow import background, follow
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.launch import loop


def without_pauses(patch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    patch.setattr(verdict, "PAUSE_SECONDS", 0.0)


def without_silence(patch: pytest.MonkeyPatch) -> None:
    """What is silent is silent at once."""
    patch.setattr(follow, "RETRY_SECONDS", 0.002)
    patch.setattr(background, "RETRY_SECONDS", 0.002)
    patch.setattr(loop, "TICK", 0.005)


def clean_up(runs: Path, run: str, transport: Any, seconds: float) -> tuple[str, bool]:
    """Ends a run on gpu1 as the helper does that goes on when the command has ended. Returns what it says of that, and
    whether all logs are there, in the folder `logs`."""
    folder = RunFolder.open(runs, "logs")
    folder.release()
    return background.clean(Host("gpu1", "gpu1"), run, 0.0, transport, time.monotonic() + seconds, folder)
