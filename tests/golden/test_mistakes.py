"""Mistakes as they are typed, each with the hints that are printed, and each command of a hint typed as it is.

A case is a file in mistakes/. files: what is in the folder, by path; one below ../ is beside it. before: lines typed
first, all well. typed: the mistake, without fleet and the transport. ends: its exit code. hints: what is printed, where
HERE is the folder, UP the one above. fill: what a reader would put in for a word in capitals. works: the exit code of
each proposed command; null: it is not typed here, since it needs an sshd.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.cli.main import run
from tests.command_lines import commands_in

CASES = sorted((Path(__file__).parent / "mistakes").glob("*.yaml"))
LOCAL = ["--transport", "local"]
HOSTS = "defaults: {workdir: WORK/in/it}\nhosts:\n  gpu01: {address: 127.0.0.1}\n"
SCRIPT = "#!/bin/sh\necho hello\n"


def ends(line: str) -> int:
    words = shlex.split(line)
    return run([*LOCAL, *words] if "--transport" not in words else words)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    for path in (folder, tmp_path / "home", tmp_path / "work"):
        path.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_what_is_proposed_works(case: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: dict[str, Any] = yaml.safe_load(case.read_text())
    files = {"fleet.yaml": HOSTS, "ok.sh": SCRIPT, **told.get("files", {})}
    for name, text in files.items():
        if text is not None:
            path = here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("WORK", str(here.parent / "work")))
            path.chmod(0o755)
    for line in told.get("before", ()):
        assert ends(line) == 0, line
    capsys.readouterr()
    assert ends(told["typed"]) == told["ends"]
    printed = capsys.readouterr().err.replace(str(here), "HERE").replace(str(here.parent), "UP").splitlines()
    hints = [line.strip().removeprefix("hint: ") for line in printed if line.startswith("  hint: ")]
    assert hints == told["hints"], printed
    proposed = [line for hint in hints for line in commands_in(hint)]
    assert len(proposed) == len(told.get("works", ())), proposed
    for line, code in zip(proposed, told.get("works", ()), strict=True):
        for hole, word in told.get("fill", {}).items():
            line = line.replace(hole, word)
        assert code is None or ends(line.replace("HERE", str(here)).removeprefix("fleet ")) == code, line
