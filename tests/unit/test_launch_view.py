"""The view of a launch: whole lines with their rank, progress bars readable, never a brake on the run."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import pytest

from fleet.answers.run_events import Detached
from fleet.answers.run_start_events import Planned, WaitsFor
from fleet.cli.run import launch_view
from fleet.cli.run.launch_view import LaunchView, folded
from fleet.cli.screen import lines as of_ranks
from fleet.cli.screen import terminal
from fleet.cli.screen.board import Board
from fleet.cli.screen.lines import Lines, last_state
from fleet.errors import Reason
from fleet.events import Notice, Output
from tests.events import happened


def out(data: bytes, rank: int | None = 0, stream: str = "stdout") -> Output:
    return Output("h", stream, data, rank)  # type: ignore[arg-type]


def test_lines_come_whole_and_a_bar_in_its_last_state() -> None:
    lines = Lines()
    assert lines.feed(b"a\nb") == [b"a"]
    assert lines.feed(b"c\n") == [b"bc"]
    assert lines.feed(b"10%\r50%\r") == [] and lines.live == b"50%"
    assert lines.feed(b"100%\n") == [b"100%"] and lines.live == b""
    assert last_state(b"x\r\r") == b"x" and last_state(b"\r") == b""


def test_endless_lines_do_not_eat_the_memory() -> None:
    lines = Lines()
    assert sum(map(len, lines.feed(b"x" * (1 << 20)))) == 1 << 20
    for _ in range(100):
        lines.feed(b"y" * 60000 + b"\r")
    assert len(lines.rest) <= of_ranks.LINE_LIMIT


def test_streams_keep_apart_and_the_rest_is_flushed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with LaunchView(["h"]) as view:
        view(out(b"one\ntw"))
        view(out(b"err \xff\n", 1, "stderr"))
        view(out(b"engine noise\n", None, "stderr"))
        view(out(b"o"))
    said = capfdbinary.readouterr()
    assert said.out == b"[h:0] one\n[h:0] two\n"
    assert said.err == b"[h:1] err \xff\n"


def test_json_is_events_only_and_escapes_stay_out_of_remarks(capfd: pytest.CaptureFixture[str]) -> None:
    with LaunchView(["h"], json=True) as view:
        view(out(b"line\n"))
        view(Notice("info", "x", "h", None, (Detached(pid=7),), time=1.0))
    (line,) = capfd.readouterr().out.splitlines()
    assert json.loads(line) == {
        "event": "detached",
        "time": 1.0,
        "level": "info",
        "host": "h",
        "message": "x",
        "pid": 7,
    }
    with LaunchView(["h"]) as view:
        view(Notice("error", "bad \x1b[31m", "h", "do \x07this"))
        view(Notice("info", "not shown", "h"))
    assert capfd.readouterr().err == "error: bad \\x1b[31m\n  hint: do \\x07this\n"


def test_a_launch_that_waits_again_has_not_begun() -> None:
    """Then Ctrl-C has nothing to stop, and a closed terminal ends it."""
    view = LaunchView(["h"])
    view(Notice("info", "", happened=(Planned(lease=None),)))
    assert view.begun and not view.leased
    view(Notice("info", "", happened=(WaitsFor(launches=["other"]),)))
    assert not view.begun and view.leased


def test_a_reader_that_stops_reading_never_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_view, "BUFFER_BYTES", 1 << 20)
    release = threading.Event()
    monkeypatch.setattr(LaunchView, "_line", lambda *args: release.wait(60))
    view = LaunchView(["h"])
    with view:
        for _ in range(1000):  # what the thread has taken counts anew
            if view._dropped:
                break
            view(out(b"x" * 60000 + b"\n"))
        assert view._dropped > 0
        release.set()


class Slow:
    """A printing thread whose reader takes a line in STUCK_SECONDS, so many times."""

    def __init__(self, view: LaunchView, lines: int) -> None:
        self.view, self.lines, self.turns = view, lines, 0

    def start(self) -> None: ...

    def is_alive(self) -> bool:
        return self.turns < 8

    def join(self, seconds: float) -> None:
        self.turns += 1
        self.view._written += self.turns <= self.lines


@pytest.mark.parametrize("lines, stopped, given_up", [(8, True, False), (3, True, True), (3, False, False)])
def test_a_slow_reader_has_all_that_it_takes(
    lines: int, stopped: bool, given_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_view.terminal, "stopped", lambda: stopped)
    view, told = LaunchView(["h"]), list[bool]()
    monkeypatch.setattr(launch_view.terminal, "give_up", lambda: told.append(True))
    monkeypatch.setattr(view, "_thread", Slow(view, lines))
    with view:
        pass
    assert bool(told) is given_up


def test_half_a_line_of_an_attempt_is_shown_once(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with LaunchView(["h"]) as view:
        view(out(b"no newline"))
        for event in ("restart", "attempt"):
            view(Notice("info", event, happened=(happened(event),)))
        view(out(b"next\n"))
    assert capfdbinary.readouterr().out == b"[h:0] no newline\n[h:0] next\n"


def test_a_reader_that_went_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*args: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(LaunchView, "_line", gone)
    with LaunchView(["h"]) as view:
        view(out(b"a\n"))
        view(out(b"b\n"))
    assert not view._thread.is_alive() and os.getpid()


def test_a_full_disk_behind_stdout_ends_the_view_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full)
    with LaunchView(["h"]) as view:
        view(out(b"line\n"))
    monkeypatch.undo()
    os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # what it still holds can go somewhere
    full.close()
    assert "Traceback" not in capfd.readouterr().err


def test_remarks_of_one_moment_are_folded_over_hosts() -> None:
    def dropped(i: int) -> Notice:
        return Notice("warning", Reason("{hosts}: silent for {n} s", hosts=f"gpu{i}", n=i), f"gpu{i}")

    other = Notice("info", "stopping")
    said = folded([dropped(1), out(b"x"), *map(dropped, range(2, 65)), other])
    assert [e.message if isinstance(e, Notice) else "output" for e in said] == [
        "gpu[1-64]: silent for 1 to 64 s",
        "output",
        "stopping",
    ]


QUIET = [(LaunchView, name) for name in ("_progress", "_show_held", "_notice", "_show", "_unfold")]
FAULTY = [*((of, name, level) for of, name in [*QUIET, (Board, "notice")] for level in (0, -1))]


@pytest.mark.parametrize("fault", [ValueError("a column too many"), KeyError("a column too many")], ids=repr)
@pytest.mark.parametrize("of, where, level", [*FAULTY, (Board, "output", 0), (Board, "scrolling", 0)])
def test_a_fault_in_the_view_is_named_once_and_the_run_goes_on_in_plain_lines(
    of: type,
    where: str,
    level: int,
    fault: Exception,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = threading.Event()

    def fail(*args: object, **named: object) -> None:
        failed.set()
        raise fault

    monkeypatch.setattr(of, where, fail)
    with LaunchView(["h"], level=level) as view:
        view(out(b"one\nha"))
        view(Notice("warning", "odd", "h"))
        assert failed.wait(60)
        view(out(b"lf\nthr"))
        view(out(b"err\n", 1, "stderr"))
        view(Notice("error", "the run failed", "h"))
    said, shows = capfdbinary.readouterr(), level == 0
    assert said.out == b"[h:0] one\n[h:0] half\n[h:0] thr\n" * shows
    assert said.err.count(b"a fault in what fleet shows here: " + type(fault).__name__.encode()) == 1
    assert said.err.count(b"[h:1] err\n") == said.err.count(b"warning: odd") == shows
    assert said.err.count(b"error: the run failed") == 1 and b"Traceback" not in said.err


def fails_at(odd: bytes, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Has the view fail at this line. Returns what is set once another one was written."""
    shown, write = threading.Event(), launch_view.write_line

    def fail(label: str, line: bytes, out: Any) -> None:
        if line == odd:
            raise KeyError("a column too many")
        write(label, line, out)
        shown.set()

    monkeypatch.setattr(launch_view, "write_line", fail)
    return shown


def test_a_fault_in_the_middle_of_a_line_costs_none_of_it(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first half came, and was taken, with an event before the one in which the fault shows."""
    shown = fails_at(b"half", monkeypatch)
    with LaunchView(["h"]) as view:
        view(out(b"one\nha"))
        assert shown.wait(60)
        view(out(b"lf\nthr"))
        view(out(b"ee\n"))
    assert capfdbinary.readouterr().out == b"[h:0] one\n[h:0] half\n[h:0] three\n"


@pytest.mark.parametrize("before", [b"10%\r", b"10%\r20%\r"])
def test_a_fault_in_the_middle_of_a_progress_bar_leaves_its_last_state(
    before: bytes, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = fails_at(b"100%", monkeypatch)
    with LaunchView(["h"]) as view:
        view(out(b"one\n" + before))
        assert shown.wait(60)
        view(out(b"100%\n"))
    first, *progress, last = capfdbinary.readouterr().out.splitlines()
    assert first == b"[h:0] one" and last == b"[h:0] 100%"
    assert {*progress} <= {b"[h:0] 10%", b"[h:0] 20%"}, "the bar's state, now and then"


def test_a_fault_in_the_plain_lines_too_costs_no_other_line(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise KeyError("host")

    monkeypatch.setattr(Lines, "feed", fail)
    monkeypatch.setattr("fleet.cli.screen.output.proposed", fail)
    with LaunchView(["h"]) as view:
        view(out("one\nzw\x1bö\n".encode()))
        view(Notice("warning", "odd \x1b", "h"))
    said = capfdbinary.readouterr()
    assert said.out == b"[h:0] one\n[h:0] zw\\x1b\\xc3\\xb6\n"
    assert said.err.endswith(b"warning: odd \\x1b\n") and b"Traceback" not in said.err


def test_a_fault_in_a_live_line_is_named_and_the_work_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    class Odd(terminal.Ticking):
        def tick(self) -> None:
            ticked.set()
            raise KeyError("host")

    ticked = threading.Event()
    with Odd():
        assert ticked.wait(60)
    assert capfd.readouterr().err.count("a fault in what fleet shows here: KeyError: 'host'") == 1
