"""What fleet hands to the engines, read by the installed engines' own parsers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fleet.engines import engine
from fleet.model import Job
from tests.worlds import NODES, WORLD

pytestmark = [pytest.mark.slow, pytest.mark.real]


@pytest.mark.parametrize("name", ["torch.distributed.run", "deepspeed.launcher.launch"])
def test_real_parsers_take_our_argv_as_we_mean_it(name: str) -> None:
    """The installed engines' own argparse, without running anything: what stands behind our words stays there."""
    engine_name = "torchrun" if name.startswith("torch.") else "deepspeed"
    start = engine(engine_name).start(Job("train.py", ("--m", "1")), WORLD, NODES[1], sys.executable)
    argv = ["/usr/bin/python3", "-I", "-S", "/r/spawn.py"]
    argv = [str(w) for w in start.argv[start.argv.index(name) + 2 : -2]] + argv
    code = (
        f"import sys, json; import {name} as m; sys.argv = ['x'] + json.loads(sys.argv[1]);"
        "a = m.parse_args(sys.argv[1:]) if 'torch.' in m.__name__ else m.parse_args();"
        "print(json.dumps([a.training_script, a.training_script_args, a.no_python]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, json.dumps(argv)],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "DS_ACCELERATOR": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == ["/usr/bin/python3", ["-I", "-S", "/r/spawn.py"], True]
