"""The live line of `fleet sync --data`."""

from __future__ import annotations

import pytest

from fleet.cli.files.data import DataLine
from fleet.events import Notice, Progress

MB = 10**6


@pytest.fixture
def line() -> DataLine:
    return DataLine()


def test_a_few_nodes_are_shown_one_by_one(line: DataLine) -> None:
    assert line.details(0.5) == []
    for name, state, done in (("b", "receiving", 0), ("a", "receiving", 0)):
        line(Progress(name, state, done, 100 * MB))
    line.details(1.0)
    for name, state, done in (("b", "away", 10 * MB), ("a", "receiving", 30 * MB), ("c", "out", 0)):
        line(Progress(name, state, done, 0 if state == "out" else 100 * MB))
    assert line.details(2.0) == ["20% of 95.4 MiB each", "19.1 MiB/s", "4 s left", "a 30%", "b away"]


def test_many_nodes_are_counted_by_state(line: DataLine) -> None:
    for n in range(1, 11):
        state, done = {10: ("away", 5), 9: ("done", 100), 8: ("receiving", 20)}.get(n, ("receiving", 50))
        line(Progress(f"gpu{n:02}", state, done * MB, 100 * MB))
    assert line.details(9.0)[1:] == ["8 receiving", "1 done", "1 away (gpu10)", "slowest: gpu10 5%"]


def test_the_rate_is_that_of_the_last_seconds(line: DataLine) -> None:
    for second in range(30):
        line(Progress("a", "receiving", min(second, 10) * MB, 100 * MB))
        details = line.details(float(second))
    assert details == ["10% of 95.4 MiB each", "a 10%"]


def test_a_notice_has_its_next_step_below_it(line: DataLine, capsys: pytest.CaptureFixture[str]) -> None:
    line(Notice("info", "left out on gpu01: .git", hint="--all fetches it"))
    line(Notice("warning", "odd \x1b[1m", "gpu01"))
    assert capsys.readouterr().err == (
        "note: left out on gpu01: .git\n  hint: --all fetches it\nwarning: host gpu01: odd \\x1b[1m\n"
    )
