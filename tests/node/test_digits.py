"""examples/digits.py under the real torchrun: what is interrupted and goes on ends as what never was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
SCRIPT = Path(__file__).parents[2] / "examples/digits.py"


def weights(cwd: Path, *args: str) -> str:
    """Their digest, after a training on three ranks: of two, any order of adding gives the same sum."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, str(SCRIPT), "--cpu", *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("weights: "))


def test_a_training_that_goes_on_from_its_checkpoint_ends_with_the_same_weights(tmp_path: Path) -> None:
    kept = ("--checkpoint", "kept/state.pt")
    short = weights(tmp_path, "--epochs", "1", *kept)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["state.pt"]
    long = weights(tmp_path, "--epochs", "2", *kept)
    assert long == weights(tmp_path, "--epochs", "2") != short
