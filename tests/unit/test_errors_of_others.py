"""Words of other programs in fleet's errors, and an answer that is not enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.screen.output import clean_message
from fleet.cli.verbs import setup_ssh
from fleet.errors import ConnectError
from tests.in_process import typed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\n  two\r\nthree\n", "one two three"),
        ("a\tb\x1b[2J\u2028c", "a b\\x1b[2J\\u2028c"),
        ("host 'a\\nb'", "host 'a\\nb'"),
    ],
)
def test_lines_of_another_programs_words_are_one(text: str, shown: str) -> None:
    assert clean_message(text) == shown


def test_an_error_of_several_lines_holds_no_sign_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("a\n")
    (tmp_path / "fabfile.py").write_text("raise ValueError('one\\n  two')\n")
    assert typed(["play", "fabfile.py"]) == 121
    assert capsys.readouterr().err.splitlines()[0].endswith("fabfile.py:1: cannot be read: ValueError: one two")


@pytest.mark.parametrize(
    ("typed", "agreed", "asked"),
    [(["yes"], True, 1), (["y", "yes"], True, 2), (["y", "y"], False, 2), (["n"], False, 1), ([None], None, 1)],
)
def test_a_y_is_not_enough_for_host_keys_and_is_told_so(
    typed: list[str | None], agreed: bool | None, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def answer(lines: Callable[[int | None], Sequence[str]]) -> Any:
        questions.append(lines(80)[-1])
        return typed[len(questions) - 1]

    monkeypatch.setattr(setup_ssh, "answer", answer)
    assert setup_ssh.confirm([]) is agreed
    assert len(questions) == asked and "Type 'yes'" in questions[-1]


@pytest.mark.parametrize("options", [["--no-fold"], ["--ranks", "0,8-15"], ["--ranks", "first", "--no-fold"]])
def test_a_line_to_copy_has_what_chooses_the_lines_that_scroll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("a\n")
    assert typed(["launch", *options, "python", "t.py"]) == 2
    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint == f"  hint: fleet launch {' '.join(options)} t.py"


def test_an_error_of_a_users_own_states_its_code_in_either_way() -> None:
    made = list[type]()

    class Listed:
        def __init_subclass__(cls, **more: Any) -> None:
            super().__init_subclass__(**more)
            made.append(cls)

    class InBody(ConnectError):
        exit_code = 7
        kind = "own"

    class InLine(InBody, Listed, kind="line"):
        pass

    assert (InBody("").exit_code, InBody("").kind) == (7, "own")
    assert (InLine("").exit_code, InLine("").kind) == (7, "line") and made == [InLine]
