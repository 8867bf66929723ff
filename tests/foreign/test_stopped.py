"""Trainers of others that are stopped: each saves its work as it does by hand, and nothing is left.

At SIGTERM Lightning 2.6's Trainer broadcasts within its handler, which hangs where another rank is in another
collective, whoever sends it: of what it saves there nothing is held. After SIGINT each rank saves, and waits for all in
a barrier. Where SIGINT comes to one node 60 ms or more after the other, two ranks are in that barrier and two in a
step's broadcast, and all hang, by hand too: one that hung has another try."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.foreign.__main__ import TRIES, foreign_lab
from tests.foreign.program import WORK, Program
from tests.foreign.programs import PROGRAMS
from tests.foreign.sides import Lab, fleet_words
from tests.node.nodes import until

LONG = {"lightning": ("--epochs", "10000"), "hf_trainer": ("--max_steps", "10000")}
JUST_IN_TIME = ("--save_strategy", "steps", "--save_steps", "9999", "--enable_jit_checkpoint", "True")


@pytest.fixture(scope="module")
def ground() -> Iterator[Lab]:
    with foreign_lab() as lab:
        yield lab


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "signum", "more", "kept"),
    [
        ("lightning_digits.py", signal.SIGINT, (), "lightning/stopped.ckpt"),
        ("lightning_digits.py (once a node)", signal.SIGINT, (), "lightning/stopped.ckpt"),
        ("lightning.sh", signal.SIGINT, (), "lightning/stopped.ckpt"),
        ("hf_trainer.py", signal.SIGINT, (), "stopped/model.safetensors"),
        ("hf_trainer.py", signal.SIGTERM, JUST_IN_TIME, "hf/checkpoint-*/model.safetensors"),
        ("hf_trainer.py (accelerate)", signal.SIGINT, (), "stopped/model.safetensors"),
    ],
)
def test_a_trainer_that_is_stopped_has_saved_its_work(
    ground: Lab, tmp_path: Path, name: str, signum: signal.Signals, more: tuple[str, ...], kept: str
) -> None:
    (program,) = (program for program in PROGRAMS if program.name == name)
    words = (*program.words, *LONG["hf_trainer" if "hf" in name else "lightning"], *more)
    program = replace(program, words=words, env={**program.env, "PAUSE": "0.1"})
    for again in range(TRIES if "lightning" in name else 1):
        folder = tmp_path / str(again)
        folder.mkdir()
        said, killed = stopped(ground, program, folder, signum)
        if not killed:
            break
    assert not killed, said
    first = ground.lab.names[0]
    assert ground.lab.sh(first, f"ls {WORK}/{kept}"), said


def stopped(ground: Lab, program: Program, folder: Path, signum: signal.Signals) -> tuple[str, list[int]]:
    """What fleet wrote of a run that got the signal after its first steps, and which ranks the grace ended."""
    before = ground.prepare(program)
    ground.inventory(program, folder)
    line = ("-i", "fleet.yaml", *fleet_words(program))
    process = ground.lab.popen(*line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    log = folder / f"runs/latest/{ground.lab.names[0]}/rank0.out"
    until(lambda: log.exists() and any(sign in log.read_text() for sign in ("loss", "epoch 0")), 200.0)
    process.send_signal(signum)
    said = process.communicate(timeout=200)[1].decode()
    (run,) = (path for path in folder.glob("runs/*-*") if not path.is_symlink())
    assert process.returncode == 130, said
    for node, was in enumerate(before):
        assert not ground.survey(node)["processes"].keys() - was["processes"].keys()
    killed: list[int] = json.loads((run / "summary.json").read_text())["killed"]
    return said, killed
