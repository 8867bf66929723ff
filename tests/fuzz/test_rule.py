"""The rule of runs, held to its model: some hundred histories, the same ones each time; the slow test has more."""

from __future__ import annotations

import pytest

from tests.fuzz.mutants import MUTANTS, RULE, Mutant, applied
from tests.fuzz.rule.__main__ import case
from tests.fuzz.rule.draw import BY_HAND, DARK, OF_A_RANK, OF_ALL, make

OF_THE_RULE = [mutant for mutant in MUTANTS if mutant.by == RULE]


@pytest.mark.parametrize("first, count", [(0, 300), pytest.param(1000, 4000, marks=pytest.mark.slow)])
def test_nothing_is_found(first: int, count: int) -> None:
    assert [wrong for seed in range(first, first + count) if (wrong := case(seed))] == []


@pytest.mark.parametrize("seed", [9386, 18273, 23438, 55666, 109761])
def test_rare_histories(seed: int) -> None:
    """Each was judged wrongly, by the model or by a node that sent its time before what it had to report."""
    assert case(seed) is None


def test_a_seed_is_a_history() -> None:
    assert make(7) == make(7) != make(8)


def test_all_that_may_befall_a_run_is_drawn() -> None:
    histories = [make(seed) for seed in range(1500)]
    drawn = {event.what for history in histories for attempt in history.attempts for event in attempt.events}
    assert drawn == {*OF_A_RANK, *DARK, *OF_ALL, *BY_HAND, "hang", "looker's link"}
    assert {len(history.ranks) for history in histories} == {2, 3, 4, 5}
    assert {history.most for history in histories} == {0, 1, 2, 3}
    assert {history.spares for history in histories} == {0, 1, 2}
    assert any(attempt.refuses for history in histories for attempt in history.attempts)


@pytest.mark.parametrize("mutant", OF_THE_RULE, ids=lambda mutant: mutant.name)
def test_what_mutants_take_back_is_there(mutant: Mutant) -> None:
    assert applied(mutant)
