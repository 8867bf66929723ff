"""The supervisor and rank wrapper under torchrun: true codes in spite of it, and nothing left."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.free_port import free_port
from tests.node.nodes import answer, final, folder_of, marked, read_json, supervise_spec, until
from tests.standin import standin_python

pytestmark = pytest.mark.real
SCRIPT = """
import os, signal, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
other = os.environ["FLEET_RUN_ID"] + ".rank0"
if os.environ["RANK"] == "1":
    while not os.path.exists(other):
        time.sleep(0.05)
    exec(sys.argv[1])
open(other, "w").close()
time.sleep(1000)
"""


@pytest.fixture(
    params=[standin_python(), pytest.param(sys.executable, marks=pytest.mark.real)], ids=["standin", "real"]
)
def python(request: pytest.FixtureRequest) -> str:
    """The interpreter whose torchrun it is."""
    return str(request.param)


def torchrun(home: Path, run: str, python: str, code: str, **changes: Any) -> Path:
    """Start 2 ranks, rank 1 executing `code`; returns the run's folder."""
    (home / "train.py").write_text(SCRIPT)
    port = free_port()
    argv = [
        python,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        "--nproc-per-node=2",
        "--node-rank=0",
        "--master-addr=127.0.0.1",
        f"--master-port={port}",
        f"--rdzv-id={run}",
        "--no-python",
        "--",
        {"python": True},
        {"run_dir": "rank.py"},
        sys.executable,
        "-u",
        "train.py",
        code,
    ]
    spec = supervise_spec(run, argv, env={"PYTHONWARNINGS": "ignore"}, **changes)
    assert answer("run.supervise", spec, home)["event"] == "started"
    return folder_of(home, run)


def test_exit_code_3_is_on_record_though_torchrun_says_1(home: Path, run: str, python: str) -> None:
    folder = torchrun(home, run, python, "sys.exit(3)")
    status = final(home, run)
    assert status["engine_status"] in (1, None) and status["left"] == [], (
        "on a busy machine it may be too long about it"
    )
    assert read_json(folder / "rank1.json")["status"] == 3
    assert read_json(folder / "rank0.json")["signal"] == signal.SIGTERM, "the supervisor ended the other one"
    assert (folder / "rank0.out").read_text() == "rank 0 of 2\n"
    assert not marked(run)


def test_signal_9_and_a_traceback(home: Path, run: str, python: str) -> None:
    folder = torchrun(home, run, python, "raise ValueError('on purpose')")
    other = run[:-1] + "1"
    killed = torchrun(home, other, python, "os.kill(os.getpid(), signal.SIGKILL)")
    final(home, run)
    final(home, other)
    assert read_json(folder / "rank1.json")["status"] == 1
    assert "Traceback" in (folder / "rank1.err").read_text()
    assert "ValueError: on purpose" in (folder / "rank1.err").read_text()
    record = read_json(killed / "rank1.json")
    assert (record["status"], record["signal"]) == (None, 9)
    assert b"Signal 9" in (killed / "node.log").read_bytes(), "torchrun saw the signal, too"


def test_killed_torchrun_leaves_no_worker(home: Path, run: str, python: str) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); open('up', 'w')"
    folder = torchrun(home, run, python, code, grace=4.0)
    until((home / "up").exists)
    (engine,) = [pid for pid in marked(run) if b"torch.distributed.run" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(engine, signal.SIGKILL)
    status = final(home, run)
    assert (status["signal"], status["left"]) == (9, [])
    assert not marked(run)
    assert [read_json(folder / f"rank{n}.json")["signal"] for n in (0, 1)] == [15, 9], "rank 1 ignores TERM"
