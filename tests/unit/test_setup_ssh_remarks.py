"""What `fleet setup-ssh` remarks about many hosts."""

from __future__ import annotations

import pytest

from fleet.cli.verbs.setup_ssh import ProgressLine, remark, tell
from fleet.errors import Reason
from fleet.events import Notice


def test_remarks_about_many_hosts_are_told_of_together_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    later: list[Notice] = []
    emit = tell(ProgressLine(), quiet=True, later=later)
    for i in range(1, 65):
        emit(Notice("warning", Reason("its home {home} is open", home=f"/home/u{i}"), f"gpu{i:02}", "chmod go-w ~"))
    emit(Notice("info", "not said", "gpu01"))
    assert capsys.readouterr().err == ""
    remark(later)
    assert capsys.readouterr().err.splitlines() == [
        "warning: host gpu[01-64]: its home /home/u1, /home/u2, /home/u3 and 61 more is open",
        "  hint: chmod go-w ~",
    ]
