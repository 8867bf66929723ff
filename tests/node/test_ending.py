"""What a supervisor decides by its clock: when a run has lasted without a head, and when which process is killed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.node.run.heed import carry_out
from fleet.node.run.start.containers import Apart
from fleet.node.run.start.ending import RECORD_GRACE, Ending
from fleet.node.run.start.engine import CodeLock
from fleet.node.run.start.kernel_log import KernelLog
from fleet.node.run.start.supervisor import Signals, Supervisor
from tests.clock import HandClock
from tests.node.nodes import read_json, supervise_spec, until

Starting = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def begin(run: str, tmp_path: Path) -> Iterator[Starting]:
    """Starts processes of the run, which are there once they have made the file `up`."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"], "FLEET_RUN_ID": run}
        begun.append(subprocess.Popen(argv, cwd=tmp_path, env=env, stdin=subprocess.PIPE))
        until((tmp_path / "up").exists)
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def test_term_once_then_kill_when_the_grace_is_over(begin: Starting, run: str, tmp_path: Path) -> None:
    process = begin("sh", "-c", "trap 'echo got >> got' TERM; touch up; while :; do read x; done")
    clock = HandClock()
    ending = Ending(run, 60.0, clock=clock)
    for _ in range(3):
        assert not ending.step()
    until((tmp_path / "got").exists)
    clock.now += 59.0
    assert not ending.step() and process.poll() is None
    clock.now += 1.0
    assert not ending.step() and process.wait(60) == -9
    assert (tmp_path / "got").read_text() == "got\n"
    assert [ending.step(), ending.step()] == [False, True] and ending.left == []


def test_who_hurries_shortens_the_grace_and_never_prolongs_it(run: str) -> None:
    clock = HandClock()
    ending = Ending(run, 60.0, clock=clock)
    ending.hurry(90.0)
    assert ending.kill_at == clock.now + 60.0
    ending.hurry(5.0)
    assert ending.kill_at == clock.now + 5.0


def test_what_outlives_sigkill_is_waited_for_so_long(run: str) -> None:
    class Hanging(Ending):
        def members(self) -> dict[int, int]:
            return {1 << 22: 1}

    clock = HandClock()
    ending = Hanging(run, 5.0, clock=clock)
    began = clock.now
    assert ending.finish() == [1 << 22] and 15.0 <= clock.now - began < 15.2


def test_a_ranks_wrapper_has_time_to_put_its_end_on_record(begin: Starting, run: str, tmp_path: Path) -> None:
    """Also where it is held up on a busy node."""
    (tmp_path / "fleet-rank").write_text("#!/bin/sh\ntouch up\nread x\n")
    (tmp_path / "fleet-rank").chmod(0o755)
    wrapper, rank = begin(str(tmp_path / "fleet-rank")), begin("sleep", "1000")
    clock = HandClock()
    ending = Ending(run, 0.0, clock=clock)
    assert not ending.step() and rank.wait(60) == -9
    clock.now += RECORD_GRACE - 1.0
    assert not ending.step() and wrapper.poll() is None
    clock.now += 1.0
    assert not ending.step() and wrapper.wait(60) == -9


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/lease").touch()
    return tmp_path / "run"


class Unsignalled(Signals):
    def __init__(self) -> None: ...


def supervisor(folder: Path, clock: HandClock, **changes: object) -> Supervisor:
    """One of an engine that is not there: what it looks at."""
    spec = supervise_spec("r", [], **changes)
    (folder / "spec.json").write_text(json.dumps(spec))
    return Supervisor(spec, str(folder), 0, Unsignalled(), CodeLock(spec, str(folder)), KernelLog(0.0), clock)  # type: ignore[arg-type]


def looked(kept: Supervisor, clock: HandClock, seconds: float) -> str | None:
    """Why it stops by then, looking once a second."""
    for _ in range(round(seconds)):
        clock.now += 1.0
        kept.look()
    return kept.cause if kept.ending is not None else None


def test_a_lease_that_is_renewed_holds_and_one_that_is_not_ends_the_run(folder: Path) -> None:
    clock = HandClock()
    kept = supervisor(folder, clock, lease=6.0)
    for _ in range(4):
        os.utime(folder / "lease")
        assert looked(kept, clock, 5.0) is None
    assert looked(kept, clock, 3.0) == "lease"
    status = read_json(folder / "status.json")
    assert (status["state"], status["cause"]) == ("stopping", "lease") and "for 6 s" in status["reason"]


@pytest.mark.parametrize(
    ("rank", "engine_status", "signum"),
    [
        (None, None, 9),  # none of this node has ended: the container was killed
        ({"status": 0}, None, 9),
        ({"status": 137}, 137, None),  # by itself, and its launcher exits with the same code
        ({"status": None}, 137, None),
    ],
)
def test_a_client_that_exits_with_137_means_a_signal_unless_a_rank_has_failed(
    rank: dict[str, Any] | None, engine_status: int | None, signum: int | None, folder: Path
) -> None:
    """The engine may end before the supervisor has looked at that rank."""
    kept = supervisor(folder, clock := HandClock())
    kept.container, kept.ended = Apart("r", {"path": "podman", "runtime": "podman"}, str(folder)), 137 << 8
    if rank is not None:
        (folder / "rank0.json").write_text(json.dumps({"rank": 0, "pid": 1, "begins": [0, 0], **rank}))
    kept.finish(Ending("r", 0.0, [os.getpid()], clock=clock))
    status = read_json(folder / "status.json")
    assert (status["engine_status"], status["signal"]) == (engine_status, signum)


def test_without_a_lease_it_runs_on(folder: Path) -> None:
    clock = HandClock()
    kept = supervisor(folder, clock, lease=None)
    assert looked(kept, clock, 300.0) is None
    clock.now += 86400.0
    assert looked(kept, clock, 1.0) is None


def test_a_run_that_was_left_outlives_its_lease(folder: Path) -> None:
    clock = HandClock()
    kept = supervisor(folder, clock, lease=6.0)
    assert looked(kept, clock, 3.0) is None
    (folder / "spec.json").write_text(json.dumps({"lease": 6.0}))
    assert carry_out("r", str(folder), {"op": "detach"})
    assert looked(kept, clock, 300.0) is None


def test_a_node_that_was_frozen_stops_by_itself_though_renewals_waited(folder: Path) -> None:
    clock = HandClock()
    kept = supervisor(folder, clock, lease=60.0, node_timeout=4.0)
    assert looked(kept, clock, 3.0) is None
    os.utime(folder / "lease")
    clock.now += 4.0
    assert looked(kept, clock, 1.0) == "frozen"
