"""The batch scripts that `fleet launch --on slurm` submits: slurm/NAME.sh has what `--dry-run` prints.

FLEET_GOLDEN=write writes what is printed now; read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fleet.cli.main import run

SCRIPTS = Path(__file__).with_name("slurm")
CASES = {
    "plain": [
        "--nodes",
        "4",
        "--partition",
        "gpu1",
        "--gres",
        "gpu:8",
        "--time",
        "20:00:00",
        "train.py",
        "--lr",
        "1e-4",
    ],
    "tasks": ["--ntasks-per-node", "8", "--cpus-per-task", "8", "--mem", "0", "--exclusive", "train.py"],
    "cpus-of-gpus": [
        "--nnodes",
        "2",
        "--gpus-per-node",
        "8",
        "--cpus-per-gpu",
        "8",
        "--engine",
        "deepspeed",
        "train.py",
    ],
    "elastic": ["--nnodes", "2:4", "--max-restarts", "3", "--gres", "gpu:8", "train.py"],
    "who-and-where": [
        *("--account", "team a", "--qos", "high", "--constraint", "a100&ib", "--reservation", "r1", "-w", "n[1-2]"),
        *("-x", "n3", "--nodelist", "n4", "--job-name", "mine", "--output", "%j.txt", "--sbatch-arg=--mail-type=END"),
        *("-m", "pkg.train", "a b", "it's"),
    ],
    "grace": ["--grace", "120", "--time", "1-00", "train.py"],
    "single-node-jobs": ["--nodes", "3", "--single-node-jobs", "--start-within", "600", "--gres", "gpu:8", "train.py"],
    "container": ["--nodes", "2", "--container", "train:1", "--container-arg=--container-writable", "train.py"],
    "sync": ["--sync", "--workdir", "/scratch/me", "--env", "A=b c", "--no-preflight", "--name", "try", "train.py"],
}


@pytest.mark.parametrize("name", CASES)
def test_script(name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in [it for it in os.environ if it.startswith(("SLURM", "SBATCH"))]:
        monkeypatch.delenv(variable)
    assert run(["--dry-run", "launch", "--on", "slurm", *CASES[name]]) == 0
    printed = re.sub(r"exec \S+( -m fleet)?", "exec fleet", capfd.readouterr().out)
    printed = re.sub(r"try-[0-9a-f-]+/", "RUN/", printed)
    printed = re.sub(r"(FLEET_CLAIMS=)\S+", r"\1RUN", printed)
    printed = re.sub(r"made by fleet \S+;", "made by fleet;", printed)
    script = SCRIPTS / f"{name}.sh"
    if os.environ.get("FLEET_GOLDEN") == "write":
        script.write_text(printed)
    assert printed == script.read_text()


def test_every_script_has_its_case() -> None:
    assert {path.stem for path in SCRIPTS.iterdir()} == set(CASES)
