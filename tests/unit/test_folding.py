"""Equal lines of several ranks are shown once on a terminal: none is lost or held long, no rank's order is changed."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from fleet.cli.line.values import Scrolling
from fleet.cli.run.launch_view import LaunchView
from fleet.cli.screen.board import Shown
from fleet.cli.screen.lines import FOLD_SECONDS, MOST_FOLDED, Folding, Stream
from fleet.events import Notice, Output

Line = tuple[str, bytes]


@pytest.mark.parametrize("seed", range(300))
def test_of_drawn_interleavings_each_rank_keeps_its_lines_in_order_and_none_is_held_long(seed: int) -> None:
    draw = random.Random(seed)
    ranks: list[Stream] = [(f"gpu{rank // 3}", rank) for rank in range(draw.randint(1, 9))]
    texts = [(draw.choice(["stdout", "stdout", "stderr"]), b"line %d" % n) for n in range(draw.choice([1, 3, 40]))]
    folding, now = Folding(), draw.random() * 1e6
    wrote: dict[Stream, list[Line]] = {rank: [] for rank in ranks}
    shown: dict[Stream, list[Line]] = {rank: [] for rank in ranks}
    came: dict[tuple[Stream, int], float] = {}

    def show(everything: bool = False) -> None:
        for stream, line, members in folding.due(now, everything):
            assert len(set(members)) == len(members), "no rank twice"
            times = []
            for rank in members:
                times.append(came[rank, len(shown[rank])])
                shown[rank].append((stream, line))
            assert max(times) - min(times) <= FOLD_SECONDS + 1e-6
        for rank in ranks:
            waiting = wrote[rank][len(shown[rank]) :]
            assert not waiting or now - came[rank, len(shown[rank])] < FOLD_SECONDS + 1e-6, "held for too long"
        assert (
            sum(len(wrote[it]) - len(shown[it]) for it in ranks) == 0
            or -1e-6 < folding.left(now) <= FOLD_SECONDS + 1e-6
        )

    for _ in range(draw.randint(0, 120)):
        now += draw.choice([0.0, 0.001, 0.05, 0.3])
        show()
        for rank in draw.sample(ranks, draw.randint(1, len(ranks))):
            text = draw.choice(texts)
            came[rank, len(wrote[rank])] = now
            wrote[rank].append(text)
            folding.feed(rank, *text, now)
    show(everything=True)
    assert shown == wrote and folding.left(now) == float("inf")


@pytest.mark.parametrize("seed", range(50))
def test_ranks_that_write_the_same_are_one_whatever_order_they_come_in(seed: int) -> None:
    draw = random.Random(seed)
    lines, ranks = [b"step %d" % (n // 2) for n in range(12)], [("gpu1", rank) for rank in range(8)]
    folding, left = Folding(), {rank: list(lines) for rank in ranks}
    while any(left.values()):
        rank = draw.choice([rank for rank in ranks if left[rank]])
        folding.feed(rank, "stdout", left[rank].pop(0), 0.0)
    shown = list(folding.due(0.2))
    assert [line for _, line, _ in shown] == lines and all(sorted(them) == ranks for _, _, them in shown)


def test_a_flood_is_not_kept() -> None:
    folding = Folding()
    for number in range(MOST_FOLDED + 7):
        folding.feed(("a", 0), "stdout", b"%d" % number, 0.0)
    assert [line for _, line, _ in folding.due(0.0)] == [b"%d" % number for number in range(7)]


@pytest.mark.parametrize("different", [100_000, 1, 2])
def test_a_flood_costs_each_line_the_same(different: int) -> None:
    folding, began, shown = Folding(), time.process_time(), 0
    for number in range(100_000):
        folding.feed(("a", 0), "stdout", b"%d" % (number % different), 0.0)
    while folding.ready(0.0, everything=True):
        shown += sum(1 for _ in folding.due(0.0, everything=True))
    assert shown == 100_000 and time.process_time() - began < 5.0


def test_of_a_batch_no_more_is_held_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0

    class Counted(Folding):
        def feed(self, rank: Stream, stream: str, line: bytes, now: float) -> None:
            nonlocal most
            super().feed(rank, stream, line, now)
            most = max(most, len(self._held))

    monkeypatch.setattr("fleet.cli.run.launch_view.Folding", Counted)
    monkeypatch.setattr("fleet.cli.run.launch_view.write_folded", lambda *words: None)
    with screen(), LaunchView(["gpu1"]) as view:
        view(wrote(0, b"".join(b"%d\n" % number for number in range(3 * MOST_FOLDED))))
    assert 0 < most <= MOST_FOLDED + 1


def test_a_line_that_could_not_be_shown_is_still_there() -> None:
    folding = Folding()
    for number in range(3):
        folding.feed(("a", 0), "stdout", b"%d" % number, 0.0)
    due = folding.due(1.0)
    assert [next(due)[1], next(due)[1]] == [b"0", b"1"]
    due.close()  # while the second was written
    assert [line for _, line, _ in folding.due(1.0)] == [b"1", b"2"]


@contextmanager
def screen() -> Iterator[int]:
    """A terminal as stdout: its other end."""
    end, terminal = os.openpty()
    with pytest.MonkeyPatch.context() as patch, open(terminal, "w") as out:
        patch.setenv("NO_COLOR", "1")
        patch.setattr(sys, "stdout", out)
        yield end
    os.close(end)


def read(end: int) -> list[str]:
    """All that has come: one read may return a part of it."""
    os.set_blocking(end, False)
    found = b""
    with suppress(BlockingIOError):
        while more := os.read(end, 1 << 16):
            found += more
    return found.decode().splitlines()


def wrote(rank: int, data: bytes) -> Output:
    return Output(f"gpu{rank // 4 + 1}", "stdout", data, rank)


def test_on_a_terminal_seven_ranks_are_one_line_and_the_odd_one_is_beside() -> None:
    with screen() as end:
        with LaunchView(["gpu1", "gpu2"]) as view:
            for rank in range(8):
                view(wrote(rank, b"loss nan\n" if rank == 7 else b"loss 0.5\n"))
            until, shown = time.monotonic() + 60, list[str]()
            while len(shown) < 2 and time.monotonic() < until:  # before it ends
                shown += read(end)
                time.sleep(0.01)
            view(Notice("warning", "odd"))
            view(wrote(0, b"half a li"))
        shown += read(end)
    assert shown == ["[ranks 0-6] loss 0.5", "[gpu2:7] loss nan", "[gpu1:0] half a li"]


def test_lines_that_are_held_when_the_view_has_a_fault_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise KeyError("host")

    monkeypatch.setattr(LaunchView, "_notice", fail)
    with screen() as end:
        with LaunchView(["gpu1"]) as view:
            for data in (b"x\nhalf", b" a li"):
                view(wrote(0, data))
            view(wrote(1, b"x\n"))
            view(Notice("warning", "odd"))
            view(wrote(0, b"ne\n"))
        assert read(end) == ["[gpu1:0] x", "[gpu1:1] x", "[gpu1:0] half a line"]


def test_no_fold_has_each_line() -> None:
    with screen() as end:
        with LaunchView(["gpu1"], scrolls=Scrolling(fold=False)) as view:
            for rank in range(2):
                view(wrote(rank, b"x\n"))
        assert read(end) == ["[gpu1:0] x", "[gpu1:1] x"]


def test_a_pipe_has_each_line(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with LaunchView(["gpu1"]) as view:
        for rank in range(2):
            view(wrote(rank, b"x\n"))
    assert capfdbinary.readouterr().out == b"[gpu1:0] x\n[gpu1:1] x\n"


@pytest.mark.parametrize(("fold", "count"), [(True, 1), (False, 3)])
def test_logs_that_are_followed_fold_too(fold: bool, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.cli.screen.terminal.live", lambda out: True)
    with screen() as end:
        with Shown(["gpu1"], live=True, fold=fold) as shown:
            for rank in range(3):
                shown(wrote(rank, b"same\n"))
        lines = [line for line in read(end) if "same" in line]
    assert len(lines) == count and (not fold or "[ranks 0-2] same" in lines[0]), lines
