"""--env in its three modes, --env-file, --nnodes, run ids: what is taken, what is refused, what is never repeated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import UsageError
from fleet.ops.run.plan.options import new_run_id, read_env, read_env_file
from fleet.requests.launch import Launch

ODD = ["it's", '72" tall', "$(id)", "a\nb", "*", "%n", "", "a=b", " lead", "é", "\udcff"]


@pytest.mark.parametrize("value", ODD)
def test_literal_values_stay_as_they_are(value: str) -> None:
    assert read_env([], [f"K={value}"], [], {})[0] == {"K": value}


@pytest.mark.parametrize("value", [v for v in ODD if "\n" not in v])
def test_env_files_hold_values_byte_for_byte(value: str, tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_bytes(f"# a comment\n\n  export A=1\r\nK={value}\n".encode("utf-8", "surrogateescape"))
    assert read_env_file(path) == {"A": "1", "K": value}


def test_a_name_alone_takes_the_heads_value_and_must_have_one() -> None:
    assert read_env([], ["HF_TOKEN"], [], {"HF_TOKEN": "s", "PATH": "/bin"})[0] == {"HF_TOKEN": "s"}
    with pytest.raises(UsageError, match="--env HF_TOKEN: not set here"):
        read_env([], ["HF_TOKEN"], [], {})


def test_a_variable_that_no_program_can_be_given_is_refused_before_a_node_is_asked() -> None:
    most = (128 << 10) - 1 - len("K=")
    assert len(read_env([], ["K=" + "x" * most], [], {})[0]["K"]) == most
    for literal, expand in ((["K=" + "x" * (most + 1)], []), ([], ["K=" + "é" * (most // 2 + 1)])):
        with pytest.raises(UsageError, match="variable K: 13107[0-9] bytes") as caught:
            read_env([], literal, expand, {})
        assert "xxx" not in str(caught.value)


def test_later_wins(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("A=file\nB=file\nC=file\n")
    values, expanded = read_env([path], ["B=flag", "C=flag"], ["C=$HOME"], {})
    assert values == {"A": "file", "B": "flag"} and expanded == {"C": "$HOME"}


@pytest.mark.parametrize(
    "line, said",
    [
        ("novalue", "env:2: no '='"),
        ("1A=x", "env:2: --env-file: not a var"),
        ("FLEET_RUN_ID=x", "fleet's own"),
        ("A=x\0y", "NUL"),
    ],
)
def test_env_file_errors_name_the_line_and_hold_no_value(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text(f"OK=1\n{line}\n")
    with pytest.raises(UsageError) as caught:
        read_env_file(path)
    assert said in str(caught.value)


def test_a_secret_that_lost_its_name_is_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        read_env([], ["hunter 2=x"], [], {})
    assert "hunter" not in str(caught.value) + str(caught.value.hint)


def test_a_missing_env_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_env_file(tmp_path / "none")


@given(st.text(), st.none() | st.text())
def test_run_ids_are_safe_in_any_file_name(script: str, name: str | None) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*-\d{8}-\d{6}-[0-9a-f]{4}", new_run_id(script, name))


def test_a_run_id_says_what_and_when() -> None:
    assert re.fullmatch(r"my-train-\d{8}-\d{6}-beef", new_run_id("src/my train.py", None, token="beef"))


@pytest.mark.parametrize("text, number", [(None, None), ("4", 4), ("3:3", 3), ("2:4", 4)])
def test_nnodes(text: str | None, number: int | None) -> None:
    assert Launch("t.py", nnodes=text).most == number


def test_a_range_is_elastic() -> None:
    assert [Launch("t.py", nnodes=text).least for text in (None, "4", "3:3", "2:4")] == [0, 0, 0, 2]


@pytest.mark.parametrize("text", ["0", "-1", "x", "2:1", "1:", "²", "9" * 5000])
def test_nnodes_refused(text: str) -> None:
    with pytest.raises(UsageError, match="^nnodes .*: not a number of nodes"):
        Launch("t.py", nnodes=text)


def test_nproc() -> None:
    asked = [Launch("t.py", nproc_per_node=given) for given in (None, "8", 8, "gpu")]
    assert [(it.ranks, it.counted) for it in asked] == [(None, "slots"), (8, "slots"), (8, "slots"), (None, "gpu")]
    for text in ("many", "0", "4097", "9" * 5000):
        with pytest.raises(UsageError, match="^nproc_per_node .*: not a number of ranks"):
            Launch("t.py", nproc_per_node=text)
