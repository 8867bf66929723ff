"""`fleet` alone, typed in a stranger's folder, and what it proposes typed after it, until a run has trained."""

from __future__ import annotations

import re
from pathlib import Path

from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab
from tests.standin import standin_python

TRAIN = "import time\nfor step in range({steps}):\n    print('step', step, flush=True)\n    time.sleep(0.1)\n"


def proposed(lab: VirtualLab, folder: Path) -> str:
    done = lab.typed("fleet", folder)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    (command,) = re.findall(r"^next: (.*)$", done.stdout, re.M)
    return str(command)


def test_what_is_proposed_leads_to_a_run_and_back_to_it(breakable: BreakableLab, tmp_path: Path) -> None:
    lab = breakable.enrol().first(2)
    hosts = "".join(f"  gpu{n:02}: {{address: {lab.address(name)}}}\n" for n, name in enumerate(lab.names, 1))
    (tmp_path / "train.py").write_text(TRAIN.format(steps=3))
    assert proposed(lab, tmp_path) == "fleet init"
    (tmp_path / "fleet.yaml").write_text(
        f"defaults: {{user: root, workdir: ~/alone, python: {standin_python()}}}\nhosts:\n{hosts}"
    )
    for command in ("fleet sync", "fleet launch train.py"):
        assert proposed(lab, tmp_path) == command
        done = lab.typed(command, tmp_path)
        assert done.returncode == 0, done.stderr
    (tmp_path / "train.py").write_text(TRAIN.format(steps=600))
    assert proposed(lab, tmp_path) == "fleet launch --sync train.py"
    assert lab.typed("fleet launch --sync --detach train.py", tmp_path).returncode == 0
    command = proposed(lab, tmp_path)
    assert re.fullmatch(r"fleet attach train-[\w-]+", command)
    assert lab.typed("fleet stop latest", tmp_path).returncode == 0
    assert lab.typed(command, tmp_path).returncode == 130
    assert proposed(lab, tmp_path) == "fleet launch train.py"


def test_new_hosts_are_to_be_set_up(breakable: BreakableLab, tmp_path: Path) -> None:
    lab = breakable.enrol().first(2)
    (tmp_path / "hostfile").write_text("198.18.0.250\n198.18.0.251\n")
    assert proposed(lab, tmp_path) == "fleet setup-ssh"
