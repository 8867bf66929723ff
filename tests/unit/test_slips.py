"""Lines that people type and fleet does not take: each is told what to write, as a line to copy that fleet takes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from fleet.cli.main import run
from tests.command_lines import accept


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)
    Path("hostfile").write_text("gpu1 slots=2\ngpu2 slots=2\n")
    return tmp_path


def hint_of(line: str, capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    assert run(shlex.split(line)[1:]) == code
    said = capsys.readouterr()
    assert said.out == ""
    error, hint = said.err.splitlines()[-2:]  # launch says first what it does
    assert error.startswith("error: ") and hint.startswith("  hint: ")
    return hint.removeprefix("  hint: ")


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("fleet exec tail -n 3 x", "fleet exec -- tail -n 3 x"),
        ("fleet exec -w gpu1 uname -a -v", "fleet exec -w gpu1 -- uname -a -v"),
        ("fleet exec -w 'gpu[1-2]' tail -n 3 'a b'", "fleet exec -w 'gpu[1-2]' -- tail -n 3 'a b'"),
        ("fleet exec --timeout 3 --shell uname -a", "fleet exec --timeout 3 --shell 'uname -a'"),
        ("fleet exec --timeout 3 --shell df /tmp", "fleet exec --timeout 3.0 --shell 'df /tmp'"),
        ("fleet lauch train.py --lr 1", "fleet launch train.py --lr 1"),
        ("fleet setupssh --tofu", "fleet setup-ssh --tofu"),
        ("fleet lab stat", "fleet lab status"),
        ("fleet train.py --lr 1", "fleet launch train.py --lr 1"),
        ("fleet ls -l", "fleet exec -- ls -l"),
        ("fleet kill 29500", "fleet kill-port 29500"),
        ("fleet run train.py --lr 1", "fleet launch train.py --lr 1"),
        ("fleet exec --shell df -h", "fleet exec --shell 'df -h'"),
        (
            "fleet launch --lr 1e-4 --sync --nnodes 2 train.py -x",
            "fleet launch --sync --nnodes 2 train.py --lr 1e-4 -x",
        ),
        ("fleet launch --no_cuda --batch=8 train.py", "fleet launch train.py --no_cuda --batch=8"),
        ("fleet launch --engine deepspeed sft.sh --lr 1", "fleet launch --engine command ./sft.sh --lr 1"),
        ("fleet -w gpu2 launch python train.py --lr 1", "fleet -w gpu2 launch train.py --lr 1"),
        ("fleet launch torchrun --nproc_per_node 8 train.py", "fleet launch --nproc-per-node 8 train.py"),
        (
            "fleet -w gpu1 launch --sync --nproc-per-node 2 --env A=1 python train.py",
            "fleet -w gpu1 launch --nproc-per-node 2 --env A=... --sync train.py",
        ),
        (
            "fleet launch --engine-arg=--x --nproc-per-node 2 torchrun --nproc_per_node=8 train.py",
            "fleet launch --engine-arg=--x --nproc-per-node 8 train.py",
        ),
        ("fleet check gpu1 gpu2", "fleet check -w gpu1,gpu2"),
        ("fleet hosts gpu1", "fleet hosts -w gpu1"),
        ("fleet kill-port", "fleet kill-port 29500"),
        ("fleet launch -H hostfile train.py", "fleet launch -i hostfile train.py"),
        ("fleet launch -H gpu1,gpu2 train.py", "fleet launch -w gpu1,gpu2 train.py"),
        ("fleet exec -H gpu1 -- hostname", "fleet exec -w gpu1 -- hostname"),
        ("fleet launch --gpus 2 train.py", "fleet launch --nproc-per-node 2 train.py"),
        ("fleet launch --gpus=2 train.py", "fleet launch --nproc-per-node=2 train.py"),
        ("fleet launch -np 2 train.py", "fleet launch --num-processes 2 train.py"),
        ("fleet launch -e gpu2 train.py", "fleet launch -x gpu2 train.py"),
        ("fleet gpu1 nvidia-smi -L", "fleet exec -w gpu1 -- nvidia-smi -L"),
        ("fleet 'gpu[1-2]' hostname", "fleet exec -w 'gpu[1-2]' -- hostname"),
        ("fleet gpu2", "fleet ssh gpu2"),
        ("fleet squeue -u me", "fleet --on slurm ps"),
        ("fleet sinfo -N", "fleet hosts --from slurm"),
        ("fleet python train.py --lr 1", "fleet launch train.py --lr 1"),
        (
            "fleet A=1 torchrun --nproc-per-node 2 -m pkg.train a",
            "fleet launch --env A=1 --nproc-per-node 2 -m pkg.train a",
        ),
        (
            "fleet torchrun --nnodes 2 --node_rank=0 --master_addr gpu1 x.py",
            "fleet launch --nnodes 2 --master-addr gpu1 x.py",
        ),
        ("fleet launch fleet.yaml train.py", "fleet launch -i fleet.yaml train.py"),
        ("fleet launch -w gpu1 python -m pkg.train --lr 1", "fleet -w gpu1 launch -m pkg.train --lr 1"),
        ("fleet launch python -c 1", "fleet launch --engine command python -c 1"),
        ("fleet launch /env/bin/python -u train.py a", "fleet launch --python /env/bin/python train.py a"),
        (
            "fleet launch --sync --engine accelerate --debug --fsdp_offload_params true train.py --lr 1",
            "fleet launch --sync --engine accelerate --engine-arg=--debug "
            "--engine-arg=--fsdp_offload_params=true train.py --lr 1",
        ),
        (
            "fleet launch --on slurm -N 2 --engine accelerate --debug --nodelist=n1 t.py",
            "fleet launch --on slurm --nodes 2 --engine accelerate --engine-arg=--debug --nodelist n1 t.py",
        ),
    ],
)
def test_what_to_write(line: str, instead: str, capsys: pytest.CaptureFixture[str]) -> None:
    hint = hint_of(line, capsys)
    assert hint.endswith(instead)
    assert re.fullmatch(r"(did you mean: |the script's own options come after it: )?", hint.removesuffix(instead))
    accept(instead)


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("fleet launch --nproc_per_nod 8 train.py", "did you mean --nproc-per-node?"),
        ("fleet check --verbos", "did you mean --verbose?"),
        ("fleet launch --engine torchrn train.py", "did you mean torchrun?"),
        ("fleet hosts --format xml", "see fleet hosts --help"),
        ("fleet sync a b", "see fleet sync --help"),
        ("fleet launch --rdzv_backend c10d train.py", "leave it away: fleet does that itself"),
        ("fleet check --nonsense", "see fleet check --help"),
        ("fleet exec -w", "see fleet exec --help"),
        ("fleet launch --lr 1 -m pkg.train", "the script's own options come after it"),
        ("fleet xyzzy", "see fleet --help"),
        ("fleet down", "see fleet --help"),
        ("fleet nohup torchrun train.py", "see fleet --help"),
        ("fleet rsync -av data gpu1:/data", "see fleet sync --help"),
        ("fleet scp gpu1:/data/x .", "see fleet get --help"),
        ("fleet cp a b", "see fleet sync --help"),
        ("fleet sbatch job.sh", "--on slurm has a run submitted: see fleet launch --help-all"),
        ("fleet launch srun torchrun train.py", "--on slurm has a run submitted: see fleet launch --help-all"),
        ("fleet scancel 17", "'fleet runs' lists the runs; stop ends one, and its job"),
        ("fleet exec -u root -- id", "a login is its host's own: user: in the inventory, or USER@HOST in a hostfile"),
        ("fleet check --user root", "a login is its host's own: user: in the inventory, or USER@HOST in a hostfile"),
        (
            "fleet torchrun --local_addr 10.0.0.1 x.py",
            "launch does that, in other words; --local_addr: each node has its own: "
            "data_address in the inventory, where fleet does not find it",
        ),
        ("fleet launch --engine accelerate --debug", "write --engine accelerate --engine-arg=--debug SCRIPT"),
        ("fleet launch --engine accelerate --debug --lr 1 train.py", "the script's own options come after it"),
        (
            "fleet launch ds.json",
            "an inventory comes after -i, a file that the script reads comes after the script",
        ),
        ("fleet --quiet", "fleet --help shows them"),
    ],
)
def test_where_no_line_can_be_made(line: str, instead: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint_of(line, capsys) == instead


@pytest.mark.parametrize(
    "line",
    [
        "fleet exec --dry-run hostname",
        "fleet exec --dry-run cat /etc/hostname",
        "fleet exec --dry-run -w gpu1 -- uname -a",
        "fleet exec --dry-run grep x -",
    ],
)
def test_a_command_without_options_needs_no_dashes(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shlex.split(line)[1:]) == 0


def test_an_option_that_both_may_mean_is_not_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        hint_of("fleet -i hostfile exec nvidia-smi -q -i 0", capsys)
        == "fleet exec -q -i 0 -- nvidia-smi; or fleet -i hostfile exec -- nvidia-smi -q -i 0"
    )
    assert (
        hint_of("fleet exec hostname -w gpu1", capsys)
        == "fleet exec -w gpu1 -- hostname; or fleet exec -- hostname -w gpu1"
    )


def test_an_option_of_the_command_is_never_taken_for_fleets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", "exec", "--dry-run", "--", "nvidia-smi", "-q", "-i", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["gpu1"]["argv"] == ["nvidia-smi", "-q", "-i", "0"]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("uname -a", "fleet --transport local exec -- uname -a; or fleet --transport local exec --shell 'uname -a'"),
        ("df -h | tail -1", "a shell takes a line: fleet --transport local exec --shell 'df -h | tail -1'"),
    ],
)
def test_a_whole_line_as_one_word(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--transport", "local", "exec", "--", word]) == 127
    assert capsys.readouterr().err.splitlines()[-1] == f"  hint: {hint}"


def test_a_launcher_of_several_nodes_on_each_host(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "--transport local exec -- torchrun --nnodes 2 --node_rank 0 nosuch.py"
    assert run(line.split()) in (1, 2, 127)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "warning: each host starts torchrun as it is typed, with the same node rank"
    assert said[1] == "  hint: fleet --transport local launch --nnodes 2 nosuch.py"
    assert not any("--env-of" in line for line in said)
    run(line.replace("--nnodes 2", "--nnodes 1").split())
    assert "warning" not in capsys.readouterr().err


def test_the_short_name_of_a_queue_is_not_quiet(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        hint_of("fleet launch --on slurm -q high train.py --lr 1", capsys)
        == "fleet launch --on slurm --qos high train.py --lr 1"
    )
    assert run(["launch", "--on", "slurm", "--dry-run", "-q", "train.py", "high"]) == 0


@pytest.mark.parametrize("name", ["job.slurm", "job"])
def test_a_shell_script_is_what_its_first_line_says(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(here))
    (here / name).write_text("#!/usr/bin/env bash\necho $NODE_RANK of $NNODES\n")
    assert run(["--transport", "local", "-w", "gpu1", "launch", name, "x"]) == 0
    assert f"launching {name} on gpu1, as --engine command --per node\n" in capfd.readouterr().err
    (out,) = here.glob("runs/*-*/gpu1/rank0.out")
    assert out.read_text() == "0 of 1\n"


def test_a_program_that_is_not_there_and_holds_no_blank_is_no_slip(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--transport", "local", "exec", "--", "nosuchprogram"]) == 127
    assert "hint" not in capsys.readouterr().err
