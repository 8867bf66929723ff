"""What stands below a run's lines: a node's bar or last words, what is folded, how the run stands."""

from __future__ import annotations

import sys

import pytest

from fleet.cli.line.values import Scrolling
from fleet.cli.screen.board import Board, Shown, clock
from fleet.events import Notice, Output
from tests.events import happened

NAMES = [f"gpu{n:02}" for n in range(1, 65)]


def told(event: str, **data: object) -> Notice:
    return Notice("info", "", happened=(happened(event, **data),), time=1000.0)


def board(names: list[str] = NAMES, scrolls: Scrolling = Scrolling()) -> Board:
    made = Board(names, scrolls)
    first_ranks = {name: 8 * number for number, name in enumerate(names)}
    made.notice(told("running", world_size=8 * len(names), first_ranks=first_ranks))
    return made


def said(host: str, rank: int, data: bytes, time: float) -> Output:
    return Output(host, "stdout", data, rank, time=time)


def test_a_node_has_the_bar_of_its_lowest_rank_and_the_run_its_status() -> None:
    made = board(NAMES[:2])
    assert made.lines(1003.0, 80, 24) == [], "nothing was said: the line of the start stays"
    assert made.output(said("gpu02", 9, b"10%\r20%\r", 1004.0)) == []
    assert made.output(said("gpu02", 8, b"30%\r", 1004.0)) == []
    assert made.output(said("gpu01", 0, b"loaded\n40%\r", 1005.0)) == [b"loaded"]
    status = "running 0:06, 16 of 16 ranks up"
    assert made.lines(1006.0, 80, 24) == [status, "[gpu01:0] 40%", "[gpu02:8] 30%"]
    made.output(said("gpu01", 0, b"100%\n", 1007.0))
    made.notice(told("rank", rank=9))
    assert made.lines(1017.0, 80, 24, "  (d)") == [
        "running 0:17, 15 of 16 ranks up, silent for 0:10, rank 0: 40%  (d)",
        "[gpu02:8] 30%",
    ]
    made.notice(told("stop"))
    assert made.lines(1008.0, 30, 24, "  (d)") == ["stopping 0:08, 15 of 16 ranks", "[gpu02:8] 30%"]


@pytest.mark.parametrize("scrolls, lines", [(Scrolling(first=True), [b"a"]), (Scrolling(frozenset({9})), [])])
def test_the_last_words_of_ranks_that_do_not_scroll_are_live(scrolls: Scrolling, lines: list[bytes]) -> None:
    made = board(NAMES[:2], scrolls)
    assert made.output(said("gpu02", 8, b"a\n", 1001.0)) == lines
    assert made.output(said("gpu02", 11, b"b\nc\nhalf", 1001.0)) == []
    assert made.lines(1002.0, 80, 24)[1:] == ["[gpu02:11] c"]


def test_64_nodes_leave_most_of_a_small_terminal_free_and_the_silent_one_is_named() -> None:
    made = board()
    for number, name in enumerate(NAMES):
        made.output(said(name, 8 * number, b"5%\r", 1000.0 if name == "gpu33" else 1060.0))
    lines = made.lines(1062.0, 80, 24)
    assert len(lines) == 9 and lines[1] == "[gpu01:0] 5%" and lines[7] == "[gpu07:48] 5%"
    assert lines[0] == "running 1:02, 512 of 512 ranks up"
    assert lines[8] == "... and 57 more nodes; gpu33 has been silent for 1:02"
    assert len(made.lines(1062.0, 80, 200)) == 65


def test_nothing_is_wider_than_the_terminal_and_drives_it() -> None:
    made = board(NAMES[:1])
    made.output(said("gpu01", 0, "\x1b[31m世界\x07".encode() * 40 + b"\r", 1000.0))
    _, line = made.lines(1001.0, 40, 24)
    assert line.startswith("[gpu01:0] 世界\\x07世") and "\x1b" not in line and len(line) < 40


def test_times() -> None:
    assert [clock(s) for s in (0, 75.9, 3723, 90061)] == ["0:00", "1:15", "1:02:03", "1 d 01:01:01"]


def test_logs_show_the_last_line_though_no_end_came(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with Shown(["gpu01"], live=True) as shown:
        shown(told("running", world_size=1))
        shown(said("gpu01", 0, b"whole\nnot yet", 1.0))
        shown(Notice("warning", "no answer from gpu02"))
    out = capfdbinary.readouterr()
    assert out.out == b"[gpu01:0] whole\n[gpu01:0] not yet\n" and out.err == b"warning: no answer from gpu02\n"


@pytest.mark.parametrize("live", [True, False])
def test_half_a_line_of_an_attempt_is_shown_before_the_next_one(
    live: bool, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    if live:
        monkeypatch.setattr("fleet.cli.screen.terminal.live", lambda stream: True)
        monkeypatch.setattr("fleet.cli.screen.terminal.interactive", lambda stream: stream is sys.stdout)
        monkeypatch.setattr("fleet.cli.screen.terminal.draw", lambda lines: None)
    with Shown(["gpu01"], live=live) as shown:
        shown(said("gpu01", 0, b"one\nhalf", 1.0))
        shown(told("attempt", world_size=1))
        shown(said("gpu01", 0, b"next\n", 2.0))
    assert capfdbinary.readouterr().out == b"[gpu01:0] one\n[gpu01:0] half\n[gpu01:0] next\n"
