"""A run and those who look on from elsewhere: all have the same end, what is not known is called so, and there is a way
out."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.lab.test_launch import (  # noqa: F401 (fixtures)
    Launch,
    background,
    launch,
    left_on,
    ready,
    summary,
    until,
)
from tests.lab.test_runs import Background, folder_of, mine, ps
from tests.lab.virtual_lab import VirtualLab
from tests.leaders import holder


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Where another head is."""
    folder = tmp_path / "another head"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("by", "code", "options"),
    [
        ("stop", 130, []),
        pytest.param("lost", 122, [], marks=pytest.mark.slow),
        pytest.param("interrupt", 130, [], marks=pytest.mark.slow),
        pytest.param("stall", 124, ["--stall-timeout", "5"], marks=pytest.mark.slow),
    ],
)
def test_every_head_has_the_same_end(
    by: str,
    code: int,
    options: list[str],
    background: Background,  # noqa: F811
    ready: VirtualLab,  # noqa: F811
    tmp_path: Path,
    other: Path,
) -> None:
    what = ["sleep", "99"] if by == "stall" else ["ticks", "-1"]
    leader = background("--grace", "1", "--node-timeout", "8", *options, "./s.py", *what, count=1)
    run = folder_of(tmp_path).name
    looker = ready.popen("-i", "lab", "attach", run, cwd=other)
    until(lambda: [*other.glob("runs/*/*/rank*.out")])
    if by == "interrupt":
        os.kill(leader.pid, signal.SIGINT)
    elif by == "stop":
        ready.fleet("-i", "lab", "stop", run, cwd=other, check=True)
    elif by == "lost":
        ready.fleet("lab", "cut", ready.names[2], check=True)
    said = [process.communicate(timeout=300)[1].decode() for process in (leader, looker)]
    ready.fleet("lab", "heal", ready.names[2], check=True)
    assert (leader.returncode, looker.returncode) == (code, code), said
    ends = [summary(folder) for folder in (tmp_path, other)]
    assert [end["end"]["by"] for end in ends] == [by, by] and ends[0]["end"]["who"] == ends[1]["end"]["who"], ends
    assert ends[0]["next"] == ends[1]["next"] or by == "stall", "who looked on has no stacks"
    if by == "stop":
        assert f"run {run} stopped by {ends[0]['end']['who']} after" in said[0], said[0]
    state = {"interrupt": "stopped", "stop": "stopped"}.get(by, "failed")
    for folder in (tmp_path, other):
        here = json.loads(ready.fleet("--json", "runs", cwd=folder, check=True).stdout)["runs"]
        assert [(each["state"], each["exit_code"]) for each in here] == [(state, code)]
    until(lambda: not left_on(ready, tmp_path))
    if by != "lost":
        assert mine(ready, tmp_path, "--all")["state"] == state


def test_a_node_that_does_not_answer_is_unknown_until_it_does(
    launch: Launch,  # noqa: F811
    ready: VirtualLab,  # noqa: F811
    tmp_path: Path,
    other: Path,
) -> None:
    first, *_, last = ready.names
    patient = ("--node-timeout", "300")  # who leads it has not given the node up by then
    assert launch("--detach", "--grace", "1", *patient, "./s.py", "ticks", "30", "cut").returncode == 0
    run = folder_of(tmp_path).name
    ready.fleet("lab", "cut", last, check=True)
    try:
        for name in ready.names:
            ready.sh(name, "touch ~/work/cut")
        looked = ready.fleet("-i", "lab", "attach", run, cwd=other)
        assert looked.returncode == 122 and f"({last} unknown from here)" in looked.stderr, looked.stderr
        assert f"over where that is known ({last} unknown)" in looked.stderr, looked.stderr
        told = summary(other)
        assert told["unknown"] == told["incomplete_logs"] == [last] and told["exit_code"] == 122
        assert json.loads(ready.fleet("--json", "runs", cwd=other, check=True).stdout)["runs"][0]["state"] == "unknown"
    finally:
        ready.fleet("lab", "heal", last, check=True)
        for name in ready.names:
            ready.sh(name, "rm -f ~/work/cut")
    again = ready.fleet("-i", "lab", "attach", run, cwd=other)
    assert again.returncode == 0 and not summary(other)["unknown"] and not summary(other)["incomplete_logs"]
    assert (other / "runs" / run / last / "rank5.out").read_text().splitlines()[-1] == "tick 29"
    until(lambda: (folder_of(tmp_path) / "summary.json").exists())


@pytest.mark.slow
def test_who_looks_on_changes_nothing_by_leaving(
    background: Background,  # noqa: F811
    ready: VirtualLab,  # noqa: F811
    tmp_path: Path,
    other: Path,
) -> None:
    """The head that leads the run dies after that: the nodes end it when its lease is over."""
    leader = background("--grace", "1", "--lease", "8", "./s.py", "ticks", "-1")
    run = folder_of(tmp_path).name
    looker = ready.popen("-i", "lab", "attach", run, cwd=other)
    until(lambda: [*other.glob("runs/*/*/rank*.out")])
    os.kill(looker.pid, signal.SIGINT)
    said = looker.communicate(timeout=300)[1].decode()
    assert looker.returncode == 0 and f"run {run} goes on as before" in said, said
    assert mine(ready, tmp_path)["lease"] == 8.0
    leader.kill()
    until(lambda: not left_on(ready, tmp_path))


def test_a_word_means_a_run_of_this_folder(launch: Launch, ready: VirtualLab, tmp_path: Path, other: Path) -> None:  # noqa: F811
    assert launch("--detach", "./s.py", "ticks", "-1").returncode == 0
    run = folder_of(tmp_path).name
    for verb in ("stop", "attach"):
        refused = ready.fleet("-i", "lab", verb, "latest", cwd=other)
        assert refused.returncode == 2 and f"name it by its whole id: {run}" in refused.stderr, refused.stderr
    assert ready.fleet("-i", "lab", "stop", run, cwd=other).returncode == 0 and ps(ready, tmp_path) == []


@pytest.mark.slow
def test_what_lost_its_folder_is_stopped_all_the_same(launch: Launch, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    """Nobody follows it, and on one node nothing but the processes' own mark tells of the run."""
    first, *_, last = ready.names
    assert launch("--detach", "./s.py", "ticks", "-1").returncode == 0
    os.kill(holder(folder_of(tmp_path)), signal.SIGKILL)
    ready.sh(last, "mv ~/.fleet/runs ~/.fleet/gone")
    stopped = ready.fleet("-i", "lab", "stop", "latest", cwd=tmp_path)
    ready.sh(last, "rm -r ~/.fleet/gone")
    assert stopped.returncode == 0, stopped.stderr
    assert not left_on(ready, tmp_path)


@pytest.mark.slow
def test_a_run_whose_hosts_are_gone_can_be_ended(launch: Launch, ready: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    assert launch("--detach", "./s.py", "ticks", "-1").returncode == 0
    run = folder_of(tmp_path).name
    ready.fleet("lab", "cut", *ready.names, check=True)
    try:
        attached = ready.fleet("-i", "lab", "attach", cwd=tmp_path)
        assert attached.returncode == 122 and f"fleet -i lab stop {run}" in attached.stderr, attached.stderr
        stopped = ready.fleet("-i", "lab", "--json", "stop", "latest", cwd=tmp_path)
        assert stopped.returncode == 122, stopped.stderr
        here = json.loads(ready.fleet("--json", "runs", cwd=tmp_path, check=True).stdout)["runs"]
        assert [run["state"] for run in here] == ["stopped"], "its helper has let go"
        told = summary(tmp_path)
        assert (told["exit_code"], told["end"]["by"], len(told["unknown"])) == (130, "stop", len(ready.names))
        assert run not in old(ready, tmp_path), "a process still stops it on its hosts"
    finally:
        ready.fleet("lab", "heal", *ready.names, check=True)
    until(lambda: not left_on(ready, tmp_path))
    events = folder_of(tmp_path) / "events.jsonl"  # the process that stayed behind is through, too
    until(lambda: events.read_text().count('"event": "cleaned"') == len(ready.names))
    until(lambda: run in old(ready, tmp_path))


def old(lab: VirtualLab, folder: Path) -> str:
    """Returns what `fleet runs --prune` would remove."""
    return lab.fleet("runs", "--prune", "-y", "--keep", "0", "--days", "0", "--dry-run", cwd=folder).stdout


@pytest.mark.slow
def test_a_head_that_comes_later_names_what_nodes_no_longer_have(
    background: Background,  # noqa: F811
    ready: VirtualLab,  # noqa: F811
    tmp_path: Path,
    other: Path,
) -> None:
    line = "echo begun; head -c 3000000 /dev/zero | tr '\\0' x; echo; exec sleep 600"
    leader = background("--nproc-per-node", "1", "--max-log", "100KB", "--grace", "1", "sh", "-c", line, count=3)
    run, first = folder_of(tmp_path), ready.names[0]
    ready.sh(first, f"until [ -s ~/.fleet/runs/{run.name}/trimmed ]; do sleep 0.1; done")
    until(lambda: all(path.stat().st_size == 3_000_007 for path in run.glob("*/rank*.out")))
    until(lambda: int(ready.sh(first, f"du -k ~/.fleet/runs/{run.name}/rank0.out | cut -f1")) < 300)
    looker = ready.popen("-i", "lab", "attach", run.name, cwd=other)
    until(lambda: len([*other.glob("runs/*/*/rank*.out")]) == 3)
    leader.send_signal(signal.SIGINT)
    said = [process.communicate(timeout=300)[1].decode() for process in (leader, looker)]
    assert (leader.returncode, looker.returncode) == (130, 130), said
    assert summary(tmp_path)["incomplete_logs"] == [] and sorted(summary(other)["incomplete_logs"]) == ready.names
    assert "B of rank0.out are not here: it keeps no more than --max-log" in said[1], said[1]
    log = (other / "runs" / run.name / first / "rank0.out").read_text()
    assert log.startswith("\n[fleet: ") and log.endswith("x\n") and len(log) < 300_000
