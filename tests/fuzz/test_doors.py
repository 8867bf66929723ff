"""Doors that stay open, as tests/fuzz/doors.py draws them: the same few cases each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST, COUNT = 505, 6


@pytest.mark.slow
def test_nothing_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [sys.executable, "-m", "tests.fuzz.doors", str(FIRST), str(COUNT)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=900)
    with capsys.disabled():
        print("\n" + "\n".join(done.stdout.strip().splitlines()[-1:]))
    assert done.returncode == 0, done.stdout + done.stderr
