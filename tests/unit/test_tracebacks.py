"""A traceback is on the screen once: while a run goes on, or in its summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.cli.run.launch_view import LaunchView
from fleet.events import Notice, Output
from tests.events import happened
from tests.failures import failed, show
from tests.failures import raised as trace
from tests.in_process import Outcome, command_line
from tests.scripted import Message, Scripted, well

TORCH = {"python": {"path": "/py", "version": "3.11.2"}, "torch": {"version": "2.5"}}


def wrote(rank: int, text: str) -> list[Message]:
    """What a node sends of the standard errors of a rank."""
    return [{"event": "stream", "id": rank, "name": f"rank{rank}.err", "offset": 0}, (rank, text.encode())]


def end(rank: int, time: float, status: int | None = 1, **more: Any) -> Message:
    return {
        "event": "rank",
        "rank": rank,
        "local_rank": rank % 2,
        "status": status,
        "signal": None,
        "time": time,
        **more,
    }


def over(texts: dict[int, str]) -> list[Message]:
    sizes = {f"rank{rank}.err": len(text) for rank, text in texts.items()}
    exited: Message = {"event": "status", "state": "exited", "engine_status": 1, "signal": None, "time": 200.0}
    return [exited, {"event": "end", "sizes": sizes}]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def launch(texts: list[str], *options: str) -> Outcome:
    """Of two ranks a host, which write that and fail, each a second after the last."""
    hosts = [f"h{n}" for n in range(len(texts) // 2)]
    Path("hostfile").write_text("".join(f"{host} slots=2\n" for host in hosts))
    nodes = dict[str, Any]()
    for n, host in enumerate(hosts):
        mine = {rank: texts[rank] for rank in (2 * n, 2 * n + 1)}
        messages = [message for rank, text in mine.items() for message in wrote(rank, text)]
        ends = [end(rank, 100.0 + rank) for rank in mine]
        nodes[host] = well([*messages, *ends, *over(mine)], **TORCH)
    return command_line([*options, "launch", "--nproc-per-node", "2", "t.py"], Scripted(nodes))


def test_the_summary_tells_each_once_with_its_ranks() -> None:
    other = "ConnectionError: closed by [10.0.0.1]:{}"
    texts = [trace(0), trace(1), trace(2, other), trace(3, other), trace(4)[:90], ""]
    groups = launch(texts, "--json").document()["tracebacks"]
    assert [(g["ranks"], g["hosts"]) for g in groups] == [([0, 1], ["h0"]), ([2, 3], ["h1"])]
    done = launch(texts)
    said, flat = done.err, " ".join(done.err.split())
    assert said.count("Traceback (most recent call last)") == 1 and said.count("ValueError: rank 0 is negative") == 1
    assert "  why: ValueError: rank 0 is negative\n" in said
    assert "ranks 0-1 on h0 have the same traceback" in flat
    assert "ranks 2-3 on h1: ConnectionError: closed by [10.0.0.1]:2; log: " in flat


def test_a_traceback_of_an_earlier_attempt_is_none_of_the_last() -> None:
    Path("hostfile").write_text("h0\nh1\n")
    before, text = len(trace(0)), trace(0) + "loading\n"
    ends = [end(0, 100.0, attempt=0), end(0, 101.0, None, signal=9, attempt=1, begins=[0, before])]
    nodes = {"h0": well([*wrote(0, text), *ends, *over({0: text})], **TORCH)}
    words = ["--json", "launch", "--nnodes", "1:2", "--nproc-per-node", "1", "t.py"]
    document = command_line(words, Scripted(nodes)).document()
    first = document["first_failure"]
    assert (first["signal"], first["traceback"], first["tail"]) == (9, None, "loading"), document
    assert document["tracebacks"] == []


def test_what_scrolled_by_already_is_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    report = failed({0: (100.0, 1, None)}, {0: trace(0)})
    with LaunchView(["gpu1"]) as view:
        view(Output("gpu1", "stderr", trace(0).encode(), 0))
    assert capfd.readouterr().err.count("Traceback") == 1
    show(report, view)
    said = capfd.readouterr().err
    assert "Traceback (most" not in said and "ValueError: rank 0 is negative" in said and "is above" in said


def test_the_view_holds_them_back_once_the_run_is_stopped(capfd: pytest.CaptureFixture[str]) -> None:
    with LaunchView(["h0", "h1"]) as view:
        for rank in range(4):
            view(Output(f"h{rank // 2}", "stderr", trace(rank).encode(), rank))
        view(Notice("info", "stopping all nodes", None, None, (happened("stop"),)))
    assert capfd.readouterr().err == ""
    with LaunchView(["h0"], level=1) as view:  # -v shows everything as it comes
        view(Output("h0", "stderr", trace(0).encode() * 2, 0))
    assert capfd.readouterr().err.count("Traceback") == 2


def test_the_view_shows_it_above_the_restart(capfd: pytest.CaptureFixture[str]) -> None:
    with LaunchView(["h0"]) as view:
        view(Output("h0", "stderr", trace(0).encode(), 0))
        view(Notice("info", "stopping all nodes", None, None, (happened("stop"),)))
        view(Notice("warning", "restart 1 of 2", None, None, (happened("restart"),)))
        view(Notice("info", "attempt 1", None, None, (happened("attempt", world_size=1),)))
        view(Output("h0", "stderr", b"well\n", 0))
    said = capfd.readouterr().err
    assert said.index("ValueError: rank 0") < said.index("restart 1 of 2") < said.index("well")
