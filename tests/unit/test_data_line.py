"""The live line of `fleet sync --data`."""

from __future__ import annotations

import pytest

from fleet.cli.files.data import DataLine
from fleet.events import Progress

MB = 10**6


@pytest.fixture
def line() -> DataLine:
    return DataLine("receiving")


def test_a_few_nodes_are_shown_one_by_one(line: DataLine) -> None:
    assert line.words(0.5) == []
    for name, state, done in (("b", "receiving", 0), ("a", "receiving", 0)):
        line(Progress(name, state, done, 100 * MB))
    line.words(1.0)
    for name, state, done in (("b", "away", 10 * MB), ("a", "receiving", 30 * MB), ("c", "out", 0)):
        line(Progress(name, state, done, 0 if state == "out" else 100 * MB))
    assert line.words(2.0) == ["20% of 95.4 MiB each", "19.1 MiB/s", "4 s left", "a 30%", "b away"]


def test_many_nodes_are_counted_by_state(line: DataLine) -> None:
    for n in range(1, 11):
        state, done = {10: ("away", 5), 9: ("done", 100), 8: ("receiving", 20)}.get(n, ("receiving", 50))
        line(Progress(f"gpu{n:02}", state, done * MB, 100 * MB))
    assert line.words(9.0)[1:] == ["8 receiving", "1 done", "1 away (gpu10)", "behind: gpu10 5%"]


def test_the_rate_is_that_of_the_last_seconds(line: DataLine) -> None:
    for second in range(30):
        line(Progress("a", "receiving", min(second, 10) * MB, 100 * MB))
        words = line.words(float(second))
    assert words == ["10% of 95.4 MiB each", "a 10%"]
