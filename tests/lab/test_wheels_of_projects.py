"""Requirement files of projects on four hosts that have torch: they get what is missing, and `pip check` is clean. Each
file finds what those before it brought, as in a project's life."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab
from tests.node.projects import FILES

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]
PYTHON = "/opt/train/bin/python3"
TORCH = subprocess.run(
    [sys.executable, "-c", "from importlib.metadata import version; print(version('torch'))"],
    capture_output=True,
    text=True,
    check=True,
).stdout.strip()


@pytest.fixture(scope="module")
def four(breakable: BreakableLab) -> VirtualLab:
    """Hosts whose interpreter has torch, what torch needs, pip and numpy."""
    lab = breakable.enrol()
    make = "from pathlib import Path; from tests.torch_site import torch_site; torch_site(Path('/opt/site'))"
    lines = [f"  {n}: {{address: {lab.address(n)}, python: {PYTHON}}}" for n in lab.names]
    (lab.home / "torch.yaml").write_text("defaults: {user: root}\nhosts:\n" + "\n".join(lines) + "\n")
    for name in lab.names:
        lab.sh(
            name,
            f'{sys.executable} -m venv --without-pip /opt/train && cd {ROOT} && {sys.executable} -c "{make}" && '
            "echo /opt/site > $(echo /opt/train/lib/python3*/site-packages)/behind.pth",
        )
    return lab


@pytest.mark.parametrize("project", ["torchmetrics", "deepspeed", "x-transformers"])
def test_what_is_missing_travels_and_pip_check_is_clean(four: VirtualLab, tmp_path: Path, project: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(FILES[project])
    done = four.fleet(
        "-i", "torch.yaml", "--json", "sync", "--wheels", str(file), "--import-timeout", "900", timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sent = {wheel["name"] for wheel in json.loads(done.stdout)["wheels"]}
    assert sent and not sent & {"torch", "numpy"}
    for name in four.names:
        assert four.sh(name, f"{PYTHON} -m pip check") == "No broken requirements found."
        assert four.sh(name, f"{PYTHON} -m pip list | grep '^torch '").split() == ["torch", TORCH]
    again = four.fleet("-i", "torch.yaml", "sync", "--wheels", str(file), check=True)
    assert "nothing to do, it has what was requested" in again.stdout
