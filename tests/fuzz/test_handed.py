"""Handed folders, as tests/fuzz/handed.py draws them: the same few each time, and one of each fault that was found."""

from __future__ import annotations

import os

import pytest

from fleet.cli.line.verbs import VERBS
from tests.fuzz.handed import hunt
from tests.fuzz.handed_promises import COMPLETE, PROMISES

FIRST, COUNT = 2000, int(os.environ.get("FLEET_FUZZ", "40"))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and owners take root")
def test_nothing_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    found = hunt(FIRST, 600.0, count=COUNT)
    with capsys.disabled():
        print("\n" + capsys.readouterr().out.strip().splitlines()[-1])
    assert not found, "\n".join(found)


def test_every_verb_has_a_promise() -> None:
    assert {*PROMISES} == {*VERBS, COMPLETE}
