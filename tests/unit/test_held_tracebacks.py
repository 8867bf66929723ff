"""Tracebacks are held back for a moment: equal ones are folded over ranks, those that end a run are its summary's."""

from __future__ import annotations

import pytest

from fleet.cli.screen.lines import HOLD_SECONDS, Stream, Tracebacks
from tests.failures import raised as trace


def lines(text: str) -> list[bytes]:
    return text.encode().splitlines()


def feed(held: Tracebacks, rank: int, text: str, now: float = 0.0) -> list[bytes]:
    return held.feed((f"h{rank // 2}", rank), lines(text), now)


def test_one_that_does_not_end_the_run_is_shown_once_in_its_place() -> None:
    held = Tracebacks()
    assert feed(held, 0, "before\n" + trace(0) + "\nafter\n") == [b"before"]
    assert feed(held, 0, "later\n") == []
    for rank in (1, 2, 3):
        feed(held, rank, trace(rank))
    assert held.due(HOLD_SECONDS / 2) == ([], [])
    shown, repeated = held.due(HOLD_SECONDS)
    assert [line for _, line in shown] == [*lines(trace(0)), b"", b"after", b"later"]
    same: list[list[Stream]] = [[("h0", 1), ("h1", 2), ("h1", 3)]]
    assert repeated == same and held.was_shown(trace(7))
    assert feed(held, 0, "plain\n") == [b"plain"]


def test_those_that_end_the_run_are_left_to_its_summary() -> None:
    held = Tracebacks()
    for rank in range(4):
        feed(held, rank, trace(rank) + "\n[rank0]:[W] not destroyed\n")
    held.stopping = True
    shown, repeated = held.due(0.1, everything=True)
    assert {line for _, line in shown} == {b"", b"[rank0]:[W] not destroyed"} and repeated == []
    assert not held.was_shown(trace(0))


@pytest.mark.parametrize("later", [0.1, HOLD_SECONDS + 1])
def test_one_that_ends_an_attempt_is_shown_before_the_next(later: float) -> None:
    held = Tracebacks()
    for rank in range(3):
        feed(held, rank, trace(rank) + "\nlast words\n")
    held.stopping = True
    held.due(later)
    held.restarts()
    shown, repeated = held.due(later, everything=True)
    told = [line for _, line in shown]
    assert told.count(b"[rank0]: ValueError: rank 0 is negative") == 1
    assert b"[rank1]: ValueError: rank 1 is negative" not in told
    assert held.due(99.0, everything=True) == ([], []), "and once"
