"""Remarks above the live line."""

from __future__ import annotations

import pytest

from fleet.cli.build import BuildTalk
from fleet.cli.data import DataLine
from fleet.cli.progress import ProgressLine
from fleet.events import Event, Finished, Notice, Output, Progress, Round, Started
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


def test_the_builds_log_comes_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    line = BuildTalk(log=True)
    for event in (Started("gpu01", "building"), NOTE, Output("gpu01", "stderr", b"cc -c a.c\nc\x1b[Ky")):
        line(event)
    assert capsys.readouterr().err == "to 2 of 2 hosts\ngpu01: cc -c a.c\n"


def fed(line: ProgressLine, *events: Event, after: float = 0.0) -> str:
    """What is to be seen `after` so many seconds."""
    for event in events:
        line.feed(event)
    return " | ".join(line.lines(line._begun + after))


def done(*names: str) -> list[Finished]:
    return [Finished(Result(name, ok=True)) for name in names]


def test_each_round_over_the_hosts_has_its_own_count() -> None:
    line = ProgressLine("sending")
    assert fed(line) == ""
    assert fed(line, Round("asking its Python", ("a", "b")), Started("a", "connecting")) == "connecting: 0 of 2 hosts"
    assert fed(line, Started("a", "asking its Python"), *done("a", "b")) == "asking its Python: 2 of 2 hosts"
    fed(line, Round("comparing files", ("b",)), Started("b", "comparing files"))
    assert fed(line, Progress("b", "sending", 512, 2048), after=0.5).startswith("0 of 1 hosts  sending  25% of 2.0 KiB")
    assert fed(line, Round("reading /data", ()), after=4) == "reading /data ... 4 s"
    assert fed(line, Round("", ())) == ""


def test_after_a_second_the_hosts_it_still_waits_for_are_named() -> None:
    names = [f"gpu{n:02}" for n in range(1, 65)]
    line = ProgressLine()
    fed(line, Round("", tuple(names)), *(Started(name, "connecting") for name in names))
    assert fed(line, after=0.9) == "connecting: 0 of 64 hosts"
    fed(line, *(Started(name, "") for name in names))
    late = [name for name in names if name not in ("gpu07", "gpu12")]
    assert fed(line, *done(*late), after=4.2) == "waiting for gpu[07,12] (2 of 64) ... 4 s"
    line = ProgressLine()
    assert fed(line, Round("asking", ("a",)), Started("a", "asking"), after=9) == "asking: waiting for a ... 9 s"


def test_pairs_are_told_in_words() -> None:
    line = ProgressLine()
    what = "checking that every host reaches every other"
    fed(line, Round(what, ("a", "b", "c")), Started("c", what), *done("a", "b"))
    assert fed(line, Progress(None, what, 6, 9, "count")) == f"{what}: 6 of 9"
    assert fed(line, after=3) == f"{what}: 6 of 9  waiting for c (1 of 3) ... 3 s"


def test_without_a_terminal_it_is_said_once_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ProgressLine()
    for event in (Round("", ("a", "b")), Started("a", ""), Started("b", ""), *done("a")):
        line(event)
    line.remind(line._made + 9)
    assert capsys.readouterr().err == ""
    line.remind(line._made + 10)
    line.remind(line._made + 20)
    assert capsys.readouterr().err == "waiting for b (1 of 2) ... 10 s\n"
