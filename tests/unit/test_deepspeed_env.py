"""DeepSpeed's file of variables: each form of a line is for a rank what its own runner and a shell make of it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from fleet.engines import engine
from fleet.model import Job
from fleet.node.facts.environment import job_env

FORMS = [
    *(
        "plain",
        "two words",
        '"two words"',
        '"one"',
        "'one'",
        "'two words'",
        "",
        "x=y",
        "a#b",
        "a # b",
        "é",
        "%h",
        "'",
        "\r",
    ),
    *("$HOME/x", "${HOME}/x", "~/x", "~/$B", "'$HOME'", '"$HOME/x y"', "$NONE", "$B$B", "a$", "$ B", "~"),
    *(
        r"cost\$5",
        r"\$5 $B",
        r"a\b",
        r"a\\b",
        r"\~ $B",
        r"\"\"",
        'say "hi" now',
        '{"k": "v"}',
        "'{\"k\": 1}'",
        "a*",
        "!x",
    ),
    *("a;b", "a&b", "a|b", "a>b", "(a)", '"a\\ b" c', "\"'a; b'\""),
]


@pytest.mark.parametrize("value", FORMS)
def test_deepspeeds_variables_are_what_its_shell_makes_of_them(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand its runner's add_export() makes a line for a shell on the node."""
    text = f'"{value.strip()}"' if re.search(r"[^\w@%+=:,./-]", value.strip()) else value.strip()
    env = {"HOME": "/root", "B": "bee", "PATH": os.environ["PATH"]}
    by_hand = subprocess.run(
        ["bash", "-c", f'export A={text}; printf %s "$A"'], env=env, capture_output=True, check=True
    )
    assert deepspeeds(value, tmp_path, monkeypatch, env) == by_hand.stdout


def deepspeeds(value: str, folder: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> bytes:
    """What a rank finds of A=VALUE in DeepSpeed's file."""
    monkeypatch.setenv("HOME", str(folder / "none"))
    monkeypatch.delenv("DS_ENV_FILE", raising=False)
    (folder / ".deepspeed_env").write_bytes(f"A={value}\n".encode())
    job = engine("deepspeed").prepare(Job("t.py"), folder)
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, own in env.items():
        monkeypatch.setenv(name, own)
    return job_env("~", {"env": job.env, "env_expand": job.env_expand})[b"A"]
