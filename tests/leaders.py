"""Which process leads a run that a `fleet launch` or `fleet attach` was typed for."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path


def leader_of(typed: int) -> int:
    """The process that the typed one waits for; 0 while there is none."""
    return int(Path(f"/proc/{typed}/task/{typed}/children").read_text().partition(" ")[0] or 0)


def holder(run: Path) -> int:
    """The process that follows a run; 0 while that changes."""
    with suppress(FileNotFoundError):
        return int((json.loads((run / "state.json").read_text()).get("leader") or {"pid": 0})["pid"])
    return 0
