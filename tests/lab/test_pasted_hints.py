"""What fleet hints at, pasted: in a stranger's folder each slip's hint is typed, and the hint of that, to the end. None
is a usage error, and none leads back to where it came from."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import click
import pytest

from tests.command_lines import accept, commands_in
from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab

STARTS = (
    "fleet exec uname -a",
    "fleet exec --shell df -h",
    "fleet exec gpu01 hostname",
    "fleet exec -- 'uname -a'",
    "fleet exec -- ls 'nothing/*.py'",
    "fleet exec -- echo one '|' wc",
    "fleet exec -- torchrun --version",
    "fleet -w gpu9 exec -- true",
    "fleet -H gpu01 exec -- true",
    "fleet -i nowhere.yaml hosts",
    "fleet -i site.yml --dry-run check",
    "fleet kill 29500",
    "fleet kill-port",
    "fleet run train.py",
    "fleet train.py",
    "fleet launch train.py",
    "fleet launch trian.py",
    "fleet launch --lr 1e-4 train.py",
    "fleet launch python train.py",
    "fleet launch torchrun --nproc_per_node 1 train.py",
    "fleet launch --sync --workdir '~/theirs' train.py",
    "fleet launch --num_gpus 1 --hostfile fleet.yaml train.py",
    "fleet launch --standalone train.py",
    "fleet launch --nnodes 9 train.py",
    "fleet launch --workdir '$HOME/work' train.py",
    "fleet launch --engine torchrn train.py",
    "fleet --transport pigeon check",
    "fleet check --nonsense",
    "fleet get gpu01:train.py",
    "fleet get nothing",
    "fleet stop nothing",
    "fleet logs latest",
    "fleet attach",
    "fleet stacks latest",
    "fleet forget nothing",
    "fleet launch --again latest",
    "fleet sync --data nothing",
    "fleet sync --wheels nothing",
    "fleet sync nothing",
    "fleet build ./nothing",
    "fleet build",
    "fleet play nothing.yaml",
    "fleet play torchrun.yaml",
    "fleet hosts --format deepspeed",
    "fleet setupssh",
    "fleet lab stat",
    "fleet init fleet.yml",
)
# these end in a run, as others do
RUNS = {
    "fleet run train.py",
    "fleet train.py",
    "fleet launch trian.py",
    "fleet launch --lr 1e-4 train.py",
    "fleet launch python train.py",
    "fleet launch torchrun --nproc_per_node 1 train.py",
    "fleet launch --num_gpus 1 --hostfile fleet.yaml train.py",
}
USAGE = re.compile(r"^error: (No such (option|verb)|Missing |Got unexpected)", re.M)
STEPS = 5  # of one slip's chain
ANSIBLE = "all:\n  hosts:\n    gpu01: {ansible_host: 10.0.0.1}\n"


@pytest.fixture(scope="module")
def gpus(breakable: BreakableLab) -> VirtualLab:
    lab = breakable.enrol().first(2)
    for name in lab.names:  # where another folder's sync is in the way
        lab.sh(name, "mkdir -p /root/theirs && echo 1 > /root/theirs/train.py")
    return lab


def folder_of(lab: VirtualLab, folder: Path) -> None:
    hosts = "".join(f"  gpu{n:02}: {{address: {lab.address(name)}}}\n" for n, name in enumerate(lab.names, 1))
    (folder / "fleet.yaml").write_text(f"defaults: {{user: root, workdir: ~/{folder.name}}}\nhosts:\n{hosts}")
    (folder / "site.yml").write_text(ANSIBLE)
    (folder / "train.py").write_text("print('trained')\n")


def follow(lab: VirtualLab, folder: Path, start: str) -> list[tuple[str, str]]:
    """(what was typed, what came of it) of a chain: of each hint the commands, until one has none, or all is well."""
    typed, todo = list[tuple[str, str]](), [start]
    while todo and len(typed) < STEPS:
        line = todo.pop(0)
        done = lab.typed(line, folder)
        typed.append((line, done.stderr))
        if done.returncode == 0:
            continue
        hints = [
            hint.strip().removeprefix("hint: ") for hint in done.stderr.splitlines() if hint.startswith("  hint: ")
        ]
        for command in (command for hint in hints for command in commands_in(hint)):
            with contextlib.suppress(click.exceptions.Exit):  # --help
                accept(command)
            assert command not in [each for each, _ in typed], f"{command!r} leads back: {typed}"
            if not any(word.isupper() and len(word) > 1 for word in command.split()) and command not in todo:
                todo.append(command)
    return typed


@pytest.mark.parametrize(
    "start", [pytest.param(start, marks=pytest.mark.slow) if start in RUNS else start for start in STARTS]
)
def test_a_hint_that_is_pasted_leads_on(start: str, gpus: VirtualLab, tmp_path: Path) -> None:
    folder_of(gpus, tmp_path)
    typed = follow(gpus, tmp_path, start)
    for line, said in typed[1:]:
        assert not USAGE.search(said), (line, said)
