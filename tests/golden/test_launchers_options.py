"""Each option of torchrun, DeepSpeed, accelerate, Colossal-AI and sbatch, typed behind `fleet launch`: taken with its
meaning, or refused with the one line that is right, which fleet takes. tests/golden/mistakes/launchers/OPTIONS.json has
what was printed; FLEET_GOLDEN=write writes what is printed now: read the difference before you commit it."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from fleet.cli.main import run
from fleet.engines.launchers import ITSELF, REFUSED, REFUSED_IN_JOBS
from fleet.engines.translate import options_of
from tests.golden.test_launchers_page import planned

RECORDED = Path(__file__).parent / "mistakes/launchers/OPTIONS.json"
TOOLS = {"torchrun": "", "deepspeed": "--engine deepspeed", "accelerate": "--engine accelerate"}
TOOLS |= {"colossalai": "--engine colossalai", "sbatch": "--on slurm"}
VALUES = {"config-file": "default.yaml", "log-level": "info", "mixed-precision": "bf16", "hostfile": "hostfile"}
VALUES |= {"zero-stage": "2", "nodelist": "gpu1", "include": "gpu1", "exclude": "gpu2", "host": "gpu1", "env": "A=1"}
VALUES |= {"deepspeed-hostfile": "hostfile", "mpirun-hostfile": "hostfile", "main-process-ip": "gpu1"}
VALUES |= {"master-addr": "gpu1", "rdzv-endpoint": "gpu1:29400", "rdzv-backend": "c10d", "extra-launch-args": "tee=3"}


def typed(tool: str, name: str) -> str:
    """Returns a line with the option, which has a value that the tool itself would take."""
    known = options_of(tool)[name]
    dashes = "-" if len(name) == 1 else "--"
    word = name.replace("-", "_") if tool != "sbatch" else name
    value = f" {VALUES.get(known.name, '2')}" if known.takes == "=" else ""
    more = "--bind-cores-to-rank " if name == "bind-core-list" else ""
    return " ".join(f"fleet launch {TOOLS[tool]} {more}{dashes}{word}{value} train.py --lr 1".split())


NOT_OF_A_JOB = "leave it out"  # -i, with --on slurm
# fleet has another option of that name, which is taken: an inventory, and what containers wait for
FLEETS = {("deepspeed", "i"), ("sbatch", "wait"), ("sbatch", "help"), ("sbatch", "h")}
FLEETS |= {("sbatch", "container")}  # of a launch on hosts; refused in jobs
CASES = [case for tool in TOOLS for case in ((tool, name) for name in options_of(tool)) if case not in FLEETS]


@pytest.fixture
def recorded() -> dict[str, str]:
    return dict(json.loads(RECORDED.read_text())) if RECORDED.exists() else {}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)
    Path("hostfile").write_text("gpu1 slots=2\ngpu2 slots=2\n")
    Path("default.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n")
    return tmp_path


@pytest.mark.parametrize(("tool", "name"), CASES)
def test_an_option(tool: str, name: str, recorded: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    line = typed(tool, name)
    code = run(["--dry-run", *shlex.split(line)[1:]])
    error = "".join(capsys.readouterr().err.splitlines(keepends=True)[-2:])
    hint = re.search(r"^  hint: (.*)", error, re.M)
    now = "taken" if code == 0 else f"{error.splitlines()[0]}; {hint[1] if hint else ''}"
    if os.environ.get("FLEET_GOLDEN") == "write":
        lines = {typed(*case) for case in CASES}
        kept = {line: said for line, said in {**recorded, line: now}.items() if line in lines}
        RECORDED.write_text(json.dumps(kept, indent=1) + "\n")
        recorded = kept
    assert now == recorded[line]
    if code == 0:
        return
    assert code == 2 and hint
    if hint[1].startswith("fleet "):
        planned(hint[1], capsys)  # and it is taken
        return
    reasons = REFUSED_IN_JOBS if tool == "sbatch" else REFUSED
    assert hint[1] in {instead for _, instead in reasons.values()} | {ITSELF, NOT_OF_A_JOB}


def test_how_many() -> None:
    """Of the versions that are installed, each option; a few are of older ones."""
    count = {tool: len({id(known) for known in options_of(tool).values()}) for tool in TOOLS}
    assert sum(count.values()) - count["sbatch"] >= 189 and count["sbatch"] >= 88
