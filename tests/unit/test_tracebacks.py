"""A traceback is on the screen once: equal ones are folded over ranks, those that end a run are left to its summary."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from fleet.cli.run.follow import show_summary
from fleet.cli.run.launch_view import LaunchView
from fleet.cli.screen.lines import HOLD_SECONDS, Stream, Tracebacks
from fleet.events import Notice, Output
from fleet.model import Host, Inventory, Job, Report
from fleet.ops.run.end.elastic_gang import ElasticGang
from fleet.ops.run.end.ends import RankEnd, run_end
from fleet.ops.run.end.gang import Gang
from fleet.ops.run.end.summary import summarise
from fleet.ops.run.kept.elasticity import Elasticity
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.plan.plan import plan as make_plan
from fleet.requests.launch import Launch
from fleet.rules.tracebacks import cause_in, exception_of, identity, last_of, split
from tests.events import happened


def trace(rank: int, what: str = "ValueError: rank {} is negative") -> str:
    return (
        f'[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "t.py", line 3, in f\n'
        f"[rank{rank}]:     f()\n[rank{rank}]: " + what.format(rank) + "\n"
    )


def lines(text: str) -> list[bytes]:
    return text.encode().splitlines()


def feed(held: Tracebacks, rank: int, text: str, now: float = 0.0) -> list[bytes]:
    return held.feed((f"h{rank // 2}", rank), lines(text), now)


def test_parts_of_a_text() -> None:
    text = (
        "a\n"
        + trace(0)
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + trace(0)
        + "\nb\n"
        + trace(1)
        + "\nc"
    )
    found = [(is_trace, text.splitlines()[first]) for is_trace, first, _ in split(text.splitlines())]
    header = "Traceback (most recent call last):"
    assert found == [(False, "a"), (True, f"[rank0]: {header}"), (False, ""), (True, f"[rank1]: {header}"), (False, "")]
    assert identity(trace(1)) == identity(trace(22)) != identity(trace(1, "KeyError: {}"))
    assert identity(trace(1)) != identity(trace(1).replace("line 3", "line 4"))
    assert exception_of("Traceback (most recent call last):\n  x\nE: a\nb") == "E: a\nb"
    assert exception_of("Traceback (most recent call last):\n  x") == exception_of(header) == ""


def test_what_a_launcher_adds_tells_nothing() -> None:
    """A shell script that starts torchrun, or accelerate, itself."""
    launcher = trace(0, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ").rstrip()
    table = "=====\nt.py FAILED\n-----\nRoot Cause (first observed failure):\n[0]:\n  exitcode  : 1 (pid: 77)\n====="
    accelerate = trace(0, "subprocess.CalledProcessError: Command '['/usr/bin/python3', 't.py']' returned non-zero")
    for text in (f"{trace(1)}\n{launcher}\n{table}", f"{trace(1)}\n{accelerate}"):
        assert cause_in(text) == "ValueError: rank 1 is negative" and "ChildFailed" not in (last_of(text) or "")
    assert "ChildFailedError" in (last_of(launcher) or "")


def test_a_syntax_error_is_one_too() -> None:
    text = '  File "/w/t.py", line 2\n    print("a"\n         ^\nSyntaxError: \'(\' was never closed'
    assert last_of("before\n" + text + "\n\nafter") == text and exception_of(text).startswith("SyntaxError")
    inside = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    import bad\n' + text
    assert last_of(inside) == inside
    assert cause_in(inside) == cause_in(text) == "SyntaxError: '(' was never closed"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (trace(0), "ValueError: rank 0 is negative"),
        ("usage: t.py\nt.py: error: unrecognized arguments: --x\n", "t.py: error: unrecognized arguments: --x"),
        ("terminate called\n  what():  CUDA error: misaligned address\n", "what():  CUDA error: misaligned address"),
        ("Fatal Python error: Segmentation fault\n", "Fatal Python error: Segmentation fault"),
        ("loss 3\nloss 2\n", None),
        ("RuntimeError: late\nall is well: no error: 3\n", "RuntimeError: late"),
    ],
)
def test_the_cause_in_a_line(text: str, cause: str | None) -> None:
    assert cause_in(text) == cause


def test_one_that_does_not_end_the_run_is_shown_once_in_its_place() -> None:
    held = Tracebacks()
    assert feed(held, 0, "before\n" + trace(0) + "\nafter\n") == [b"before"]
    assert feed(held, 0, "later\n") == []
    for rank in (1, 2, 3):
        feed(held, rank, trace(rank))
    assert held.due(HOLD_SECONDS / 2) == ([], [])
    shown, repeated = held.due(HOLD_SECONDS)
    assert [line for _, line in shown] == [*lines(trace(0)), b"", b"after", b"later"]
    same: list[list[Stream]] = [[("h0", 1), ("h1", 2), ("h1", 3)]]
    assert repeated == same and held.was_shown(trace(7))
    assert feed(held, 0, "plain\n") == [b"plain"]


def test_those_that_end_the_run_are_left_to_its_summary() -> None:
    held = Tracebacks()
    for rank in range(4):
        feed(held, rank, trace(rank) + "\n[rank0]:[W] not destroyed\n")
    held.stopping = True
    shown, repeated = held.due(0.1, everything=True)
    assert {line for _, line in shown} == {b"", b"[rank0]:[W] not destroyed"} and repeated == []
    assert not held.was_shown(trace(0))


def failed_run(tmp_path: Path, texts: list[str]) -> Report:
    hosts = tuple(Host(f"h{i}", f"10.0.0.{i}", slots=2) for i in range(3))
    plan = make_plan(Inventory(hosts), Job("t.py"), Launch("t.py", runs_dir=tmp_path), "r")
    folder = RunFolder.create(tmp_path, "r")
    logs = {h.name: folder.node(h.name) for h in hosts}
    gang = Gang({"h0": 0, "h1": 1, "h2": 2})
    for rank, text in enumerate(texts):
        host = f"h{rank // 2}"
        logs[host].write(f"rank{rank}.err", 0, text.encode())
        gang.rank_ended(RankEnd(host, rank // 2, rank, rank % 2, 1, None, 100.0 + rank))
    for host in logs:
        gang.nodes[host].ended = True
    gang.stop(run_end("failure", "rank 0 failed", 1), 200.0)
    return summarise(plan.record(0.0), gang, logs, [], 1.0)


def screen(report: Report, view: LaunchView, capfd: pytest.CaptureFixture[str]) -> str:
    with click.Context(click.Command("launch")):
        show_summary(report, view)
    return capfd.readouterr().err


def test_the_summary_tells_each_once_with_its_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = "ConnectionError: closed by [10.0.0.1]:{}"
    report = failed_run(tmp_path, [trace(0), trace(1), trace(2, other), trace(3, other), trace(4)[:90]])
    assert [(g["ranks"], g["hosts"]) for g in report.data["tracebacks"]] == [([0, 1], ["h0"]), ([2, 3], ["h1"])]
    said = screen(report, LaunchView(["h0", "h1"]), capfd)
    assert said.count("Traceback (most recent call last)") == 1 and said.count("ValueError: rank 0 is negative") == 1
    assert said.splitlines()[1] == "  why: ValueError: rank 0 is negative"
    assert "ranks 0-1 on h0 have the same traceback" in said
    assert "ranks 2-3 on h1: ConnectionError: closed by [10.0.0.1]:2; log: " in said


def test_a_traceback_of_an_earlier_attempt_is_none_of_the_last(tmp_path: Path) -> None:
    hosts = (Host("h0", "10.0.0.1", slots=1),)
    plan = make_plan(Inventory(hosts), Job("t.py"), Launch("t.py", runs_dir=tmp_path), "r")
    logs = {"h0": RunFolder.create(tmp_path, "r").node("h0")}
    gang = ElasticGang({"h0": 0}, Elasticity(1), {"h0": 1})
    before = trace(0).encode()
    logs["h0"].write("rank0.err", 0, before + b"loading\n")
    gang.rank_ended(RankEnd("h0", 0, 0, 0, 1, None, 100.0, 0))
    gang.rank_ended(RankEnd("h0", 0, 0, 0, None, 9, 101.0, 1, (0, len(before))))
    gang.stop(run_end("failure", "h0 failed", 137, "h0"), 102.0)
    gang.nodes["h0"].ended = True
    report = summarise(plan.record(0.0), gang, logs, [], 1.0)
    first = report.data["first_failure"]
    assert (first["signal"], first["traceback"], first["tail"]) == (9, None, "loading")
    assert report.data["tracebacks"] == []


def test_what_scrolled_by_already_is_not_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = failed_run(tmp_path, [trace(0)] + [""] * 3)
    with LaunchView(["h0", "h1"]) as view:
        view(Output("h0", "stderr", trace(0).encode(), 0))
    assert capfd.readouterr().err.count("Traceback") == 1
    said = screen(report, view, capfd)
    assert "Traceback (most" not in said and "ValueError: rank 0 is negative" in said and "stands above" in said


def test_the_view_holds_them_back_once_the_run_is_stopped(capfd: pytest.CaptureFixture[str]) -> None:
    with LaunchView(["h0", "h1"]) as view:
        for rank in range(4):
            view(Output(f"h{rank // 2}", "stderr", trace(rank).encode(), rank))
        view(Notice("info", "stopping all nodes", None, None, (happened("stop"),)))
    assert capfd.readouterr().err == ""
    with LaunchView(["h0"], level=1) as view:  # -v shows everything as it comes
        view(Output("h0", "stderr", trace(0).encode() * 2, 0))
    assert capfd.readouterr().err.count("Traceback") == 2


@pytest.mark.parametrize("later", [0.1, HOLD_SECONDS + 1])
def test_one_that_ends_an_attempt_is_shown_before_the_next(later: float) -> None:
    held = Tracebacks()
    for rank in range(3):
        feed(held, rank, trace(rank) + "\nlast words\n")
    held.stopping = True
    held.due(later)
    held.restarts()
    shown, repeated = held.due(later, everything=True)
    told = [line for _, line in shown]
    assert told.count(b"[rank0]: ValueError: rank 0 is negative") == 1
    assert b"[rank1]: ValueError: rank 1 is negative" not in told
    assert held.due(99.0, everything=True) == ([], []), "and once"


def test_the_view_shows_it_above_the_restart(capfd: pytest.CaptureFixture[str]) -> None:
    with LaunchView(["h0"]) as view:
        view(Output("h0", "stderr", trace(0).encode(), 0))
        view(Notice("info", "stopping all nodes", None, None, (happened("stop"),)))
        view(Notice("warning", "restart 1 of 2", None, None, (happened("restart"),)))
        view(Notice("info", "attempt 1", None, None, (happened("attempt", world_size=1),)))
        view(Output("h0", "stderr", b"well\n", 0))
    said = capfd.readouterr().err
    assert said.index("ValueError: rank 0") < said.index("restart 1 of 2") < said.index("well")
