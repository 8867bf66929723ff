"""Remarks above the live line."""

from __future__ import annotations

import pytest

from fleet.cli.build import BuildTalk
from fleet.cli.data import DataLine
from fleet.cli.progress import ProgressLine
from fleet.events import Event, Finished, Notice, Output, Progress, Started
from fleet.model import Result

NOTE, WARNING = Notice("info", "to 2 of 2 hosts"), Notice("warning", "odd \x1b[31m", "gpu01", "a hint")


@pytest.mark.parametrize(("kind", "note"), [(ProgressLine, "to 2 of 2 hosts\n"), (DataLine, "note: to 2 of 2 hosts\n")])
def test_notices_are_said_where_there_is_no_terminal(
    kind: type[ProgressLine], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with kind("sending") as line:
        for event in (Started("gpu01", "sending"), NOTE, WARNING):
            line(event)
    assert capsys.readouterr() == ("", note + "warning: host gpu01: odd \\x1b[31m\n")


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine("sending", quiet=True)
    line(NOTE)
    line(WARNING)
    assert capsys.readouterr() == ("", "")


def test_a_remark_takes_the_place_of_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = BuildTalk(log=True)
    line._live = True
    for event in (Started("gpu01", "building"), NOTE, Output("gpu01", "stderr", b"cc -c a.c\n")):
        line(event)
    # drawn, wiped for each remark, never a remark behind the line
    assert capsys.readouterr().err == "\r\x1b[K0/1 hosts  building\r\x1b[Kto 2 of 2 hosts\n\r\x1b[Kgpu01: cc -c a.c\n"


def test_each_round_over_the_hosts_has_its_own_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fleet.cli.progress.REDRAW_SECONDS", 0.0)
    line = ProgressLine("sending")
    line._live = True

    def shown(*events: Event) -> str:
        for event in events:
            line(event)
        return capsys.readouterr().err.rpartition("\x1b[K")[2]

    done = [Finished(Result(name, ok=True)) for name in ("a", "b")]
    assert shown(Started("a", "asking its Python"), Started("b", "asking its Python")) == "0/2 hosts  asking its Python"
    assert shown(*done) == "2/2 hosts  asking its Python"
    shown(Started("b", "connecting"))
    assert shown(Progress("b", "receiving", 512, 2048)).startswith("0/1 hosts  sending  25% of 2.0 KiB, ")
    # more than are at work at once begin later, in the same round
    assert shown(done[1], Started("a", "connecting")).startswith("1/2 hosts  sending  25% of 2.0 KiB, ")
    assert shown(done[0], Started("a", "installing")) == "0/1 hosts  installing"
