"""Each playbook that comes with fleet, whole, on two hosts without a GPU. (demo.yaml: `make demo`.)"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab

PYTHON = "/opt/train/bin/python3"
STEP = """import importlib, torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
p = torch.nn.Parameter(torch.ones(1000))
optimizer = DeepSpeedCPUAdam([p], lr=0.1)
p.grad = torch.ones_like(p)
optimizer.step()
assert importlib.import_module("deepspeed.ops.adam.cpu_adam_op").__file__.startswith("/opt/train/")
print("stepped to %.3f" % float(p[0]))
"""


@pytest.fixture(scope="module")
def two(breakable: BreakableLab) -> VirtualLab:
    """Two hosts with a training environment of their own, into which a wheel may go."""
    lab = breakable.first(2)
    site = sysconfig.get_path("purelib")
    for name in lab.names:
        lab.sh(
            name,
            f"{sys.executable} -m venv --without-pip /opt/train && "
            f"echo 'import site; site.addsitedir(\"{site}\")' "
            "> $(echo /opt/train/lib/python3*/site-packages)/behind.pth && "
            f"sed '1s|.*|#!{PYTHON}|' {Path(sys.executable).with_name('torchrun')} > /opt/train/bin/torchrun && "
            "chmod +x /opt/train/bin/torchrun",
        )
    lines = [f"  {name}: {{address: {lab.address(name)}}}" for name in lab.names]
    defaults = f"defaults: {{user: root, workdir: ~/work, slots: 2, python: {PYTHON}}}\n"
    (lab.home / "fleet.yaml").write_text(defaults + "hosts:\n" + "\n".join(lines) + "\n")
    return lab


def play(lab: VirtualLab, book: str, *options: str, **variables: object) -> subprocess.CompletedProcess[str]:
    given = [word for name, value in variables.items() for word in ("--var", f"{name}={value}")]
    done = lab.fleet("play", *options, book, *given, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def said(lab: VirtualLab, name: str) -> str:
    """What all ranks of the last run of that name printed."""
    run = max(lab.home.glob(f"runs/{name}-*"), key=lambda path: path.stat().st_mtime)
    return "".join(path.read_text() for path in sorted(run.glob("*/rank*.out")))


@pytest.mark.real
def test_torchrun(two: VirtualLab) -> None:
    """The first: from here on the hosts are reached without a password."""
    play(two, "torchrun.yaml", password_file=two.password_file, ranks=2)
    assert "rank 3 of 4 on" in said(two, "torchrun") and "test accuracy: 0.9" in said(two, "torchrun")


@pytest.mark.real
def test_colossalai(two: VirtualLab) -> None:
    done = play(two, "colossalai.yaml", password_file=two.password_file, ranks=1)
    assert "(2) ---\ngcc" in done.stdout and "colossalai 0" in done.stdout
    assert "rank 1 of 2: test accuracy 0.9" in said(two, "colossalai")


@pytest.mark.real
@pytest.mark.timeout(2400)
def test_deepspeed(two: VirtualLab, tmp_path: Path) -> None:
    """The real one, whose two ops then work. The compiler is told not to optimize, which halves the time."""
    quick = b'#!/bin/sh\nexec g++ "$@" -O0 -g0\n'
    for name in two.enrol().names:
        two.inside(name, "sh", "-c", "cat > /opt/quick-g++ && chmod +x /opt/quick-g++", stdin=quick)
    cpu = {"ranks": 1, "accelerator": "cpu", "ops": "cpu_adam,shm_comm", "cxx": "/opt/quick-g++"}
    play(two, "deepspeed.yaml", steps=80, **cpu)
    printed = said(two, "t5")
    assert "rank 1 of 2: T5, ZeRO-2, AdamW, loss " in printed
    there = two.sh(two.names[1], "ls /opt/train/lib/python3*/site-packages/deepspeed/ops/comm/deepspeed_shm_comm_op*")
    assert there.endswith(".so")
    (tmp_path / "step.py").write_text(STEP)
    two.fleet("sync", str(tmp_path), "--to", "~/step", check=True)
    steps = two.fleet("exec", "--", "env", "DS_ACCELERATOR=cpu", PYTHON, "/root/step/step.py", timeout=600)
    assert steps.returncode == 0 and "stepped to 0.900" in steps.stdout, steps.stdout + steps.stderr


@pytest.mark.real
def test_accelerate_over_pdsh(two: VirtualLab) -> None:
    two.enrol()
    play(two, "accelerate-pdsh.yaml", ranks=1, accelerator="cpu")
    assert "rank 1 of 2, DeepSpeedEngine: test accuracy 0.9" in said(two, "accelerate")


@pytest.mark.real
def test_sft(two: VirtualLab) -> None:
    two.enrol()
    play(two, "sft.yaml", gpus=1)
    printed = said(two, "sft")
    assert f"node 1 of 2: {two.names[1]}, master {two.address(two.names[0])}:" in printed
    assert "rank 1 of 2 on" in printed and "test accuracy: 0.9" in printed
