"""Variables of a job stand in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.engines.env_file import env_file, read_env_file
from fleet.errors import UsageError


def test_variables_of_a_job_stand_in_a_file(tmp_path: Path) -> None:
    values = {"A": "b c", "B": '"', "C": "'quoted'", "D": "", "E": "a=b#\r", "F": 'it\'s "so"', "G": " x "}
    (tmp_path / "env").write_text(env_file(values), newline="")
    assert read_env_file(tmp_path / "env") == values
    for value in ("a\nb", "'it is \"so\"'"):
        with pytest.raises(UsageError, match="variable A: no line can hold its value"):
            env_file({"A": value})
