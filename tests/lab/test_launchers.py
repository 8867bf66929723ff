"""What the jobs of tests/launchers.py are, of which `python -m tests.launchers` runs all, over every transport. What
starts torch's ranks is in test_launch_engines.py, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import launchers
from tests.lab.virtual_lab import VirtualLab


@pytest.mark.parametrize("name", ["command, once a slot", pytest.param("bash sft.sh", marks=pytest.mark.real)])
def test_a_job(lab: VirtualLab, tmp_path: Path, name: str) -> None:
    inventory = launchers.ready(lab.enrol(), tmp_path)
    try:
        assert launchers.faults(lab, inventory, launchers.JOBS[name], "ssh", tmp_path) == []
    finally:
        for host in lab.names:
            lab.sh(host, "rm -rf ~/launchers")
