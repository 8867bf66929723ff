"""The engine of `--engine command`: starts ranks, ends them together, and says how the first that failed ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.node.nodes import LIMIT, PYTHON

SPAWN = Path(__file__).parents[2] / "fleet/node/run/rank/spawn.py"
RANK = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"!")
time.sleep(0.8 + 0.004 * int(os.environ["RANK"]))
os._exit(0)
"""


def test_it_is_the_engine_unless_a_launcher_has_made_ranks(tmp_path: Path) -> None:
    """accelerate starts torchrun, or one process a node, as its configuration says."""
    shutil.copy(SPAWN, tmp_path)
    (tmp_path / "command.json").write_text(json.dumps({"argv": []}))
    (tmp_path / "rank.py").write_text('import os; print(os.environ["RANK"], flush=True); os._exit(0)')
    argv = [PYTHON, "-I", "-S", str(tmp_path / "spawn.py"), "4", "2", "LAUNCHED_BY"]
    for env, ranks in (({}, ["4", "5"]), ({"LAUNCHED_BY": "none", "RANK": "7"}, ["7"])):
        assert sorted(subprocess.check_output(argv, text=True, env=env).split()) == ranks


STOPS = """
import os, signal
if os.environ["RANK"] == "0":
    os.kill(os.getppid(), signal.SIGTERM)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os._exit(128 + signal.sigwait({signal.SIGTERM}))
"""


def test_told_to_end_while_ranks_are_started(tmp_path: Path) -> None:
    """All of them hear of it, and none is left behind."""
    shutil.copy(SPAWN, tmp_path)
    (tmp_path / "command.json").write_text(json.dumps({"argv": []}))
    (tmp_path / "rank.py").write_text(STOPS)
    argv = [PYTHON, "-I", "-S", str(tmp_path / "spawn.py"), "0", "300"]
    engine = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert engine.wait(LIMIT) == 128 + signal.SIGTERM, "the status of its ranks"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.pid, signal.SIGKILL)
        engine.wait()


def test_told_to_end_while_ranks_end_by_themselves(tmp_path: Path) -> None:
    """A rank that has just ended, as most have when a run is stopped, is no process to be signalled any more."""
    shutil.copy(SPAWN, tmp_path)
    (tmp_path / "command.json").write_text(json.dumps({"argv": []}))
    (tmp_path / "rank.py").write_text(RANK)
    engine = subprocess.Popen(
        [PYTHON, "-I", "-S", str(tmp_path / "spawn.py"), "0", "50"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout and engine.stdout.read(50)
    time.sleep(0.3)
    while engine.poll() is None:
        engine.send_signal(signal.SIGTERM)
        time.sleep(0.0002)
    assert (engine.communicate()[1], engine.returncode) == ("", 0)
