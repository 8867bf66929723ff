"""Programs that stand in for those of a scheduler: shell scripts at the front of PATH."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest


def put(folder: Path, programs: Mapping[str, str], patch: pytest.MonkeyPatch) -> Path:
    """programs: by name, what a shell runs in its place."""
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    patch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder
