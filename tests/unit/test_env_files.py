"""Variables of a job stand in a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.cli.main import run
from fleet.engines.env_file import env_file, read_env_file
from fleet.errors import UsageError


def test_variables_of_a_job_stand_in_a_file(tmp_path: Path) -> None:
    values = {"A": "b c", "B": '"', "C": "'quoted'", "D": "", "E": "a=b#\r", "F": 'it\'s "so"', "G": " x "}
    (tmp_path / "env").write_text(env_file(values), newline="")
    assert read_env_file(tmp_path / "env") == values
    for value in ("a\nb", "'it is \"so\"'"):
        with pytest.raises(UsageError, match="variable A: no line can hold its value"):
            env_file({"A": value})


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, endless, huge, Path.mkdir], ids=["pipe", "endless", "huge", "folder"])
def test_what_is_no_file_of_variables_is_refused_at_once(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hostfile").write_text("127.0.0.1 port=1\n")
    make(Path("env"))
    assert run(["launch", "--dry-run", "--env-file", "env", "t.py"]) == 2
    assert "error: --env-file env: " in capsys.readouterr().err
