"""Ends that a grammar makes: handled, logged, chained, wrapped, of threads, of children, each with its true cause."""

from __future__ import annotations

import pytest

from fleet.rules.ended import ended_by
from tests.hints.grammar import made


@pytest.mark.parametrize("seed", range(200))
def test_what_the_grammar_made(seed: int) -> None:
    text, status, expected = made(seed)
    cause = ended_by(text, status)
    assert expected in (cause.why or "") if expected else cause.why is None, f"{text}\n{status} {expected} {cause.why}"
