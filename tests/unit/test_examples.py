"""`fleet examples`: what comes with fleet is listed, printed and copied; no file of the user's is written over."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.cli.line.shipped import FOLDERS, shipped
from fleet.cli.main import run

ROOT = Path(__file__).parents[2]
NAMES = sorted(f"{folder}/{path.name}" for folder in FOLDERS for path in (ROOT / folder).iterdir() if path.is_file())


def test_every_file_is_listed_with_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["examples"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines) == NAMES
    assert [line for line in lines if line.startswith("hostfiles/mpich ")][0].endswith("  An MPICH machine file")
    assert run(["--json", "examples", "digits.py"]) == 0
    ((name, told),) = json.loads(capsys.readouterr().out)["files"].items()
    assert name == "examples/digits.py" and Path(told["path"]).read_text() == (ROOT / name).read_text()


def test_a_name_prints_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("hostfiles/two-nodes.yaml", "two-nodes.yaml"):
        assert run(["examples", name]) == 0
        assert capsys.readouterr().out == (ROOT / "hostfiles/two-nodes.yaml").read_text()
    assert run(["examples", "two-nodes.yaml", "nosuch.yaml"]) == 2
    printed = capsys.readouterr()
    assert "no 'nosuch.yaml' comes with fleet" in printed.err and not printed.out


def test_copies_leave_what_is_there_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--dry-run", "examples", "--to", str(tmp_path / "new")]) == 0
    assert not (tmp_path / "new").exists()
    for _ in range(2):
        assert run(["examples", "--to", str(tmp_path / "new")]) == 0
    assert sorted(str(path.relative_to(tmp_path / "new")) for path in tmp_path.glob("new/*/*")) == NAMES
    (tmp_path / "own/playbooks").mkdir(parents=True)
    (tmp_path / "own/playbooks/demo.yaml").write_text("mine\n")
    capsys.readouterr()
    assert run(["examples", "--to", str(tmp_path / "own")]) == 2
    assert "playbooks/demo.yaml is there already" in capsys.readouterr().err
    assert sorted(tmp_path.glob("own/*")) == [tmp_path / "own/playbooks"]


def test_play_finds_one_by_its_name_where_no_such_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["--dry-run", "play", "demo.yaml"]) == 121
    said = capsys.readouterr().err
    assert "fleet's own playbooks/demo.yaml" in said and "'password_file' has no value" in said
    (tmp_path / "demo.yaml").write_text("- nosuchverb:\n")
    assert run(["--dry-run", "play", "demo.yaml"]) == 121
    assert "demo.yaml:1: unknown verb" in capsys.readouterr().err
    assert run(["play", "fleet.yaml"]) == 121
    assert "cannot read the playbook fleet.yaml" in capsys.readouterr().err


def test_each_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["examples"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^examples/sft\.sh +What a scheduler starts on each node$", said, re.M) and "#!" not in said, said


def test_what_ships_is_what_stands_beside_fleet() -> None:
    assert sorted(shipped()) == NAMES
    assert all(path.read_bytes() == (ROOT / name).read_bytes() for name, path in shipped().items())


def test_python_m_fleet_is_fleet() -> None:
    done = subprocess.run([sys.executable, "-m", "fleet", "nosuchverb"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and "error: No such verb 'nosuchverb'" in done.stderr
    assert "fleet --help" in done.stderr and "__main__" not in done.stderr
