"""What a rank's last lines are taken for: a file a case in tests/golden/hints, a log and, below "hint: ", the remedy.

FLEET_GOLDEN=write writes what is said now: read the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.rules.ended import ended_by

CASES = sorted((Path(__file__).parent / "hints").glob("*.txt"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_remedy_is_as_recorded(path: Path) -> None:
    log, _, recorded = path.read_text().partition("hint: ")
    said = ended_by(log).remedy or "none"
    if os.environ.get("FLEET_GOLDEN") == "write":
        path.write_text(f"{log}hint: {said}\n")
    assert said == recorded.strip()


def test_there_are_cases() -> None:
    assert CASES
