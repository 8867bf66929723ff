"""The options of other launchers on `fleet launch`: taken for the same thing, or refused with the reason."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import run
from fleet.engines.launchers import REFUSED, SAME
from fleet.node.container.options import FLEETS
from tests.unit.test_slips import here as here  # two hosts of two slots


def planned(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["--json", "launch", "--dry-run", *shlex.split(line)]) == 0, capsys.readouterr().err
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)["plan"]
    return plan


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--nproc_per_node=3 --nnodes=2 t.py", "--nproc-per-node 3 t.py"),
        ("--num_gpus 1 --num_nodes 1 t.py", "--nproc-per-node 1 --nnodes 1 t.py"),
        ("--hostfile other t.py", "-i other t.py"),
        ("--include gpu1@gpu2:0 t.py", "-w gpu1,gpu2:0 t.py"),
        ("--host gpu2 t.py", "-w gpu2 t.py"),
        ("--exclude gpu2:0 t.py", "-x gpu2:0 t.py"),
        (
            "--main_process_ip 10.0.0.9 --main_process_port 29501 t.py",
            "--master-addr 10.0.0.9 --master-port 29501 t.py",
        ),
        ("--rdzv_endpoint=10.0.0.9:29400 t.py", "--master-addr 10.0.0.9 --master-port 29400 t.py"),
        ("--rdzv_endpoint 10.0.0.9 t.py", "--master-addr 10.0.0.9 t.py"),
        ("--rdzv_endpoint [fd00::1]:29400 t.py", "--master-addr fd00::1 --master-port 29400 t.py"),
        ("--num_machines 2 --num_processes 2 t.py", "--nproc-per-node 1 t.py"),
        ("--num_processes 4 -i other t.py", "-i other t.py"),
        ("--num_machines 1 --num_processes 2 t.py", "--nnodes 1 --nproc-per-node 2 t.py"),
        ("--module --engine deepspeed pkg.train", "-m --engine deepspeed pkg.train"),
        ("--no_python ./t", "--no-python ./t"),
    ],
)
def test_the_same_thing(theirs: str, ours: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "other").write_text("gpu7 slots=3\ngpu8 slots=1\n")
    plans = [planned(line, capsys) for line in (theirs, ours)]
    ports = [plan.pop("master").rpartition(":")[2] for plan in plans]
    if "port" in ours:
        assert ports[0] == ports[1]
    for plan in plans:
        plan["hosts"] = {name: (host["ranks"], host["command"]) for name, host in plan["hosts"].items()}
    assert plans[0]["hosts"] == plans[1]["hosts"]


@pytest.mark.parametrize("name", [*REFUSED])
def test_refused_with_the_reason(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    word = f"-{name}" if len(name) == 1 else f"--{name.replace('-', '_')}"
    assert run(["launch", word, "x", "t.py"]) == 2
    word = f"--{name}" if name in FLEETS else word
    assert capsys.readouterr().err == f"error: {word}: {REFUSED[name][0]}\n  hint: {REFUSED[name][1]}\n"


def test_what_is_taken_is_not_refused() -> None:
    assert not SAME.keys() & REFUSED.keys()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--num_processes 3 t.py", "--num-processes 3: cannot be shared out to 2 hosts evenly"),
        ("--num_processes 0 t.py", "--num-processes 0: cannot be shared out to 2 hosts evenly"),
        ("--num_processes x t.py", "--num-processes x: cannot be shared out to 2 hosts evenly"),
        ("--num_processes 2 --num_gpus 2 t.py", "--num-processes and --nproc-per-node say different things"),
        ("--rdzv_endpoint a:1 --master_port 2 t.py", "--rdzv-endpoint and --master-port say different things"),
    ],
)
def test_what_cannot_be(line: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", "--dry-run", *shlex.split(line)]) == 2
    assert capsys.readouterr().err.splitlines()[0] == f"error: {error}"


def test_their_options_before_and_the_scripts_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """What fleet has not stands behind the script; their options are fleet's."""
    assert run(["launch", "--lr", "1", "--num_gpus", "2", "train.py"]) == 2
    assert capsys.readouterr().err.endswith("fleet launch --num_gpus 2 train.py --lr 1\n")


@pytest.mark.parametrize("line", ["sft.sh 8", "bash sft.sh 8"])
def test_a_shell_script_is_started_once_a_node(
    line: str, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(here))
    """As it was copied: neither executable nor with a first line. It is no rank, and finds nothing that says so."""
    counts = "$RANK$LOCAL_RANK$WORLD_SIZE$LOCAL_WORLD_SIZE$FLEET_FIRST_RANK"
    (here / "sft.sh").write_text(f'echo "{counts} $NODE_RANK $NNODES $NPROC_PER_NODE $MASTER_ADDR $1"\n')
    assert run(["--transport", "local", "-w", "gpu1", "launch", *line.split()]) == 0
    said = capfd.readouterr()
    assert f"launching {line.split()[0]} on gpu1, as --engine command --per node\n" in said.err
    (out,) = here.glob("runs/*-*/gpu1/rank0.out")
    assert out.read_text() == " 0 1 2 127.0.0.1 8\n"


def test_deepspeeds_variables_are_told_by_name_only(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(here / "nobody"))
    (here / ".deepspeed_env").write_text("TOKEN=hush\n")
    for words in ([], ["--json"]):
        assert run([*words, "launch", "--engine", "deepspeed", "--dry-run", "t.py"]) == 0
        said = capsys.readouterr().out
        assert f"{here}/.deepspeed_env sets TOKEN" in said and "hush" not in said
