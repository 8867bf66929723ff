"""Mistakes as they are typed, each with the hints that are printed, and each command of a hint typed as it is.

A case is a file in mistakes/. files: what is in the folder, by path; one below ../ is beside it. before: lines typed
first, all well. typed: the mistake, without fleet and the transport. ends: its exit code. hints: what is printed, where
HERE is the folder, UP the one above. fill: what a reader would put in for a word in capitals. works: the exit code of
each proposed command; null: it is not typed here, since it needs an sshd.
"""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from fleet.cli.line.verbs import VERBS
from fleet.cli.main import cli, run
from tests.command_lines import commands_in, wrong_hints

CASES = sorted((Path(__file__).parent / "mistakes").glob("*.yaml"))
LOCAL = ["--transport", "local"]
HOSTS = "defaults: {workdir: WORK/in/it}\nhosts:\n  gpu01: {address: 127.0.0.1}\n"
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|\.\.\.")
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


ELSEWHERE = ("lab", "ssh", "forward", "init", "setup-ssh", "slurm-conf", "help", "pack")  # not for --transport local
SAFE = [name for name in VERBS if name not in ELSEWHERE]
UNKNOWN = ["--gpus=2", "--verbos", "-z", "--ndoes", "--hots", "extra", "--"]


def lines() -> list[list[str]]:
    """Returns the examples that the verbs' help shows, without fleet."""
    found = []
    for name in SAFE:
        command = cli.get_command(click.Context(cli), name)
        found += [shlex.split(line.partition("#")[0])[1:] for line in getattr(command, "examples", ())]
    return [line for line in found if not {"|", "<", ">", "&&"} & {*line}]


def mistaken(line: list[str], draw: random.Random) -> list[str]:
    """Returns the line with one mistake in it."""
    line, at = list(line), draw.randrange(len(line))
    word = line[at]
    kind = draw.choice(["letter", "swap", "drop", "add", "twice"])
    if kind == "letter" and len(word) > 3:
        cut = draw.randrange(1, len(word))
        line[at] = word[:cut] + word[cut + 1 :]
    elif kind == "swap" and at:
        line[at - 1], line[at] = word, line[at - 1]
    elif kind == "drop":
        del line[at]
    elif kind == "twice":
        line.insert(at, word)
    else:
        line.insert(at, draw.choice(UNKNOWN))
    return line


@pytest.mark.parametrize("seed", range(24))
def test_drawn_mistakes(seed: int, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each proposal for a drawn mistake is a line that fleet takes, and is not the one that was typed."""
    (here / "fleet.yaml").write_text(HOSTS.replace("WORK", str(here.parent / "work")))
    (here / "train.py").write_text("")
    (here / "tasks.py").write_text("from fabric import task\n\n@task\ndef deploy(c, branch='main'): pass\n")
    draw, examples = random.Random(seed), lines()
    for _ in range(12):
        meant = draw.choice(examples)
        typed = mistaken(meant, draw)
        line = [*LOCAL, "--dry-run", *typed]
        code = run(line)
        said = capsys.readouterr().err
        hints = [each.strip().removeprefix("hint: ") for each in said.splitlines() if each.startswith("  hint: ")]
        for proposal in (proposal for hint in hints for proposal in commands_in(hint)):
            assert shlex.split(proposal)[1:] != line or code != 2, (typed, proposal)
            assert not wrong_hints(f"  hint: {proposal}"), (typed, proposal)
            words = shlex.split(proposal)[1:]
            if words[-len(meant) :] != meant and words[-1] not in SAFE and not PLACEHOLDER.search(proposal):
                again = run(["--dry-run", *words] if "--dry-run" not in words else words)
                assert again != 2, (typed, proposal, capsys.readouterr().err)
                capsys.readouterr()
