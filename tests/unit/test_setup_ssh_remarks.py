"""What `fleet setup-ssh` remarks about many hosts."""

from __future__ import annotations

import pytest

from fleet.cli.line.line import Line, Settings, running
from fleet.cli.verbs.setup_ssh import Remarks
from fleet.errors import Reason
from fleet.events import Notice


def test_remarks_about_many_hosts_are_told_of_together_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with running(Line(settings=Settings(quiet=True))), Remarks() as emit:
        for i in range(1, 65):
            reason = Reason("its home {home} is open", home=f"/home/u{i}")
            emit(Notice("warning", reason, f"gpu{i:02}", "chmod go-w ~"))
        emit(Notice("info", "not said", "gpu01"))
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err.splitlines() == [
        "warning: host gpu[01-64]: its home /home/u1, /home/u2, /home/u3 and 61 more is open",
        "  hint: chmod go-w ~",
    ]
