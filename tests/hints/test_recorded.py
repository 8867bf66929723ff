"""Ends of programs that were run (programs.txt): each has the cause and the next step that it deserves, or none."""

from __future__ import annotations

import pytest

from fleet.rules.ended import ended_by
from tests.hints.programs import PROGRAMS, RECORDED, Program, recorded


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_what_was_recorded(program: Program) -> None:
    status, tail = recorded(program)
    cause = ended_by(tail, status)
    assert cause.why is None if program.cause == "-" else program.cause in (cause.why or ""), cause
    assert cause.remedy is None if program.hint == "-" else program.hint in (cause.remedy or ""), cause


def test_every_program_was_recorded() -> None:
    assert {path.stem for path in RECORDED.iterdir()} == {program.name for program in PROGRAMS}
