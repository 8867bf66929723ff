"""A few of `make foreign`'s programs, the quick ones: alike by hand and by fleet, but for what is known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.foreign.__main__ import both, foreign_lab
from tests.foreign.programs import PROGRAMS
from tests.foreign.sides import Lab

QUICK = (
    "test_cli.py",
    "echo1.py --segfault",
    "words.py (command)",
    "all_bytes.py (command)",
    "log_to_stdout.py (command)",
    "tee.sh",
    "daemon.py",
    "lightning_digits.py (once a node)",
    "nanogpt.py alone",
    "dcp_async.py",
)


@pytest.fixture(scope="module")
def ground() -> Iterator[Lab]:
    with foreign_lab() as lab:
        yield lab


@pytest.mark.real
@pytest.mark.parametrize("name", QUICK)
def test_a_program_is_alike_by_hand_and_by_fleet(ground: Lab, name: str) -> None:
    (program,) = (program for program in PROGRAMS if program.name == name)
    hand, _, found = both(ground, program)
    assert not [difference for difference in found if not difference.why], hand.said[-3000:]
    reasons = {difference.why for difference in found}
    assert reasons >= set(program.known.values()), "what is another no more"


def test_there_are_enough_of_them() -> None:
    assert len(PROGRAMS) == len({program.name for program in PROGRAMS}) >= 45
    assert sum(program.public for program in PROGRAMS) >= 15
