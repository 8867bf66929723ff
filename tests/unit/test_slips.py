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
    ],
)
def test_what_to_write(line: str, instead: str, capsys: pytest.CaptureFixture[str]) -> None:
    hint = hint_of(line, capsys)
    assert hint.endswith(instead)
    assert re.fullmatch(r"(did you mean: |the script's own options stand behind it: )?", hint.removesuffix(instead))
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
        ("fleet launch -H hostfile train.py", "write -i FILE"),
        ("fleet check --nonsense", "see fleet check --help"),
        ("fleet exec -w", "see fleet exec --help"),
        ("fleet xyzzy", "see fleet --help"),
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
        ("df -h | tail -1", "fleet --transport local exec --shell 'df -h | tail -1' takes a line"),
    ],
)
def test_a_whole_line_as_one_word(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--transport", "local", "exec", "--", word]) == 127
    assert capsys.readouterr().err.splitlines()[-1] == f"  hint: {hint}"


def test_a_program_that_is_not_there_and_holds_no_blank_is_no_slip(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--transport", "local", "exec", "--", "nosuchprogram"]) == 127
    assert "hint" not in capsys.readouterr().err
