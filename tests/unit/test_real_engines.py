"""What fleet hands to the engines, read by the installed engines' own parsers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fleet.engines import engine
from fleet.engines.translate import bare, options_of
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


PARSERS = {
    "torchrun": "from torch.distributed.run import get_args_parser as made; of(made())",
    "accelerate": "from accelerate.commands.launch import launch_command_parser as made; of(made())",
    "deepspeed": "import deepspeed.launcher.runner as m; argparse.ArgumentParser.parse_args = of; m.parse_args()",
    "colossalai": "import colossalai.cli.launcher as m; print(json.dumps([[p.opts, not p.is_flag] for p in m.run.params"
    " if p.opts[0][:1] == '-']))",
}
SHOWN = """
import argparse, json, sys
def of(parser, **_):
    print(json.dumps([[a.option_strings, a.nargs != 0] for a in parser._actions if a.option_strings]))
    sys.exit()
"""
OLDER = {"m", "use-env", "elastic-training", "min-elastic-nodes", "max-elastic-nodes", "nproc"}  # or a prefix


@pytest.mark.parametrize("tool", PARSERS)
def test_the_table_of_options_is_the_installed_ones(tool: str) -> None:
    """Compares names, and which of them a value follows."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHOWN + PARSERS[tool]],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "DS_ACCELERATOR": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = {bare(option): takes for options, takes in json.loads(done.stdout.splitlines()[-1]) for option in options}
    theirs = {"module" if name == "m" else name: takes for name, takes in theirs.items() if name not in ("h", "help")}
    assert theirs == {name: known.takes == "=" for name, known in options_of(tool).items() if name not in OLDER} | {
        name: takes for name, takes in theirs.items() if name in OLDER
    }
