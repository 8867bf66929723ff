"""Each failure says in its first two lines who and why, and what to do next is what fleet takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.model import Report
from fleet.rules.ended import ended_by
from tests.command_lines import accept
from tests.failures import (
    ASKED,
    FAILURES,
    LAMENT,
    a_gpu_that_fell_off_the_bus,
    a_node_that_was_cut_off,
    failed,
    of_rank,
    show,
    trace,
)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_who_and_why(
    failure: Callable[[], Report], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    report = failure()
    show(report)
    said = capfd.readouterr().err
    who, why = FAILURES[failure]
    assert who in said.splitlines()[0] and why in "".join(said.splitlines()[:2])
    assert said.count("Traceback (most") <= 1 and report.exit_code != 0
    for command in report.data["next"]:
        accept(command)


def test_what_the_failed_rank_survived_ended_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has handled it at a module's level, where it looks like the end of those that a stop has ended."""
    monkeypatch.chdir(tmp_path)
    handled = trace("ConnectionError: tracker at 10.9.9.9:5000 refused", "tracker.begin()")
    left = handled + "license server says no; leaving\n"
    report = failed({0: ASKED, 1: ASKED, 2: (100.0, 3, None), 3: ASKED}, {0: handled, 1: handled, 2: left, 3: handled})
    assert (report.data["first_failure"]["rank"], report.data["first_failure"]["why"]) == (2, None)
    assert report.data["tracebacks"] == []
    monkeypatch.chdir(tmp_path / "runs")
    texts = {rank: trace(f"ConnectionError: rank {rank} is refused") + "leaving\n" * (rank == 2) for rank in range(4)}
    assert failed({0: ASKED, 1: ASKED, 2: (100.0, 3, None), 3: ASKED}, texts).data["tracebacks"] == []


def test_what_the_failed_rank_reported_itself_may_have_ended_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 prints it and exits with a code of its own; those that ended with 1 by themselves raised it."""
    monkeypatch.chdir(tmp_path)
    text = trace("ConnectionError: tracker at 10.9.9.9:5000 refused")
    ends = {0: (100.0, 13, None), 1: (100.1, 1, None), 2: (100.1, 1, None), 3: ASKED}
    report = failed(ends, dict.fromkeys(range(4), text))
    assert [it["ranks"] for it in report.data["tracebacks"]] == [[1, 2]]
    monkeypatch.chdir(tmp_path / "runs")
    # a longer message begins with the same words
    other = {2: trace("OSError: no shard: a, b") + "leaving\n", 3: trace("OSError: no shard: a")}
    report = failed({0: ASKED, 1: ASKED, 2: (100.0, 3, None), 3: ASKED}, other)
    assert [it["ranks"] for it in report.data["tracebacks"]] == [[3]]


@pytest.mark.parametrize(
    ("error", "named"),
    [
        ("ValueError: no such column", 1),
        ("ConnectionError: peer gone", 0),
        ("BrokenPipeError: [Errno 32] Broken pipe", 0),
    ],
)
def test_a_connection_that_was_lost_after_a_time_out_is_not_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, named: int
) -> None:
    monkeypatch.chdir(tmp_path)
    late = trace("RuntimeError: Timed out waiting 1000ms for recv operation to complete")
    ends = {0: (100.0, 1, None), 1: (100.15, 1, None), 2: ASKED, 3: ASKED}
    report = failed(ends, {0: late, 1: trace(error)})
    assert report.data["first_failure"]["rank"] == named, report.data["first_failure"]
    monkeypatch.chdir(tmp_path / "runs")
    report = failed(ends, {0: trace(LAMENT), 1: trace(error)})
    assert report.data["first_failure"]["rank"] == 1, "another one went away: by that"


def test_a_host_that_is_to_blame_is_left_out_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert a_gpu_that_fell_off_the_bus().data["next"][0].endswith("-x gpu4")
    monkeypatch.chdir(tmp_path / "runs")
    two = failed({2: ASKED, 3: ASKED}, lost=("gpu1", "gpu2"))
    assert two.data["next"] == ["fleet launch --again train-20261122-060000-0a1b -x 'gpu[1-2]'"]
    monkeypatch.chdir(tmp_path / "runs/runs")
    assert a_node_that_was_cut_off().data["next"] == ["fleet launch --again train-20261122-060000-0a1b -x gpu2"]


THREAD = "Exception in thread Thread-1 (feed):\n" + trace("OSError: the shards are gone")


@pytest.mark.parametrize(
    ("text", "why"), [(THREAD, "OSError: the shards are gone, in Thread-1 (feed)"), (THREAD + "step 20\n", None)]
)
def test_a_thread_that_a_stalled_rank_waits_for(
    text: str, why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = failed(dict.fromkeys(range(4), ASKED), {2: text}, until={2: len(text)}, stalled=2)
    first = report.data["first_failure"]
    assert (first["what"], first["rank"], first["why"]) == ("stalled", 2, why)
    assert first["hint"] == (None if why else "a longer --stall-timeout"), "a dead thread takes for ever"


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (trace("ValueError: no"), True),
        (of_rank(2, trace("ValueError: no")) + "[W] not destroyed\n", True),
        (trace(LAMENT), False),
        (trace("KeyboardInterrupt"), False),
        (trace("lightning.SIGTERMException"), False),
        (trace("ValueError: retried") + "step\n" * 30, False),
        ("loss 3\n", False),
    ],
)
def test_an_error_of_its_own(text: str, own: bool) -> None:
    assert ended_by(text).own == own
