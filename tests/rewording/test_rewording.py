"""Nothing hangs on a sentence: tests of ends and exit codes are green on a fleet whose messages are replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.rewording.__main__ import run
from tests.rewording.reword import private, reworded

GATE = [
    "tests/lab/test_runs.py::test_a_run_is_left_found_taken_up_left_again_and_stopped",
    "tests/lab/test_two_heads.py",
]


def test_messages_are_found_and_the_rest_stays() -> None:
    source = (
        'x = {"message": "it is so", "kind": "a b"}\nraise HostFailed(f"no {x} here", hint="fleet ps", kind="no")\n'
    )
    text, count = reworded(source)
    assert count == 3 and "it is so" not in text and "'a b'" in text and "fleet ps" in text and "here" not in text
    assert private("a {b}") == "\ue061 {b}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ip") is None, reason="the lab needs iproute2")
def test_behaviour_does_not_hang_on_a_sentence(tmp_path: Path) -> None:
    assert run(tmp_path, GATE) == 0


def test_a_decision_on_a_sentence_shows(tmp_path: Path) -> None:
    """The machine itself: what asks for the beginning of a message finds none."""
    asks = "error = HostFailed('it is silent')\nok = error.startswith('it')\n"
    names: dict[str, object] = {"HostFailed": str}
    exec(asks, names)
    assert names["ok"]
    exec(reworded(asks)[0], names)
    assert not names["ok"]
