"""What to do with a run that goes on by itself."""

from __future__ import annotations

import pytest

from fleet.answers.runs import LeftAlone
from fleet.model import Report
from tests.failures import show


def test_what_to_do_with_a_run_that_was_left_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    show(Report("launch", (), 0, answer=LeftAlone("r", 1, "runs/r")))
    said = capsys.readouterr().err
    assert "'fleet ps' shows it, 'fleet logs -f' its output, 'fleet stop r' ends it" in said, said
