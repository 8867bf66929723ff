"""Engines of other packages: found by entry point, named with the package where one is broken, in nobody's way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.engines import ENGINES
from tests.other_packages import ENGINE, install

pytestmark = pytest.mark.slow
HOSTS = "hosts: {a: {}, b: {}}\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    install(tmp_path / "site", "quietlaunch", ENGINE, quiet="Quiet", torchrun="Quiet")
    install(tmp_path / "site", "brokenlaunch", "import nothere\n", broken="Broken")
    install(tmp_path / "site", "byelaunch", "raise SystemExit(0)\n", bye="Bye")
    return install(tmp_path / "site", "oddlaunch", "class Odd: ...\n", odd="Odd", gone="Gone")


def fleet(site: Path, *args: str) -> tuple[int, str]:
    inventory = site / "fleet.yaml"
    inventory.write_text(HOSTS)
    env = {**os.environ, "PYTHONPATH": str(site), "FLEET_INVENTORY": str(inventory)}
    argv = [sys.executable, "-m", "fleet", *args]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def test_they_stand_among_the_choices(site: Path) -> None:
    for verb in ("launch", "check"):
        code, said = fleet(site, verb, "--help")
        listed = "".join(said.split())
        assert code == 0 and f"[{'|'.join(ENGINES.own)}|broken|bye|gone|odd|quiet]" in listed
    assert "did you mean quiet" in fleet(site, "launch", "--engine", "quiett", "x.py")[1]


def test_one_is_planned_with(site: Path) -> None:
    code, said = fleet(site, "launch", "--engine", "quiet", "--dry-run", "train.py", "--lr", "1")
    assert code == 0 and "engine quiet" in said and "MASTER_PORT" in said, said
    # fleet's own name stays its own
    assert "torch.distributed.run" in fleet(site, "launch", "--dry-run", "train.py")[1], (
        "fleet's own name stays its own"
    )


def test_its_own_options_are_offered_where_it_is_named(tmp_path: Path) -> None:
    options = "    options = (Option('warm-up', 'Seconds of it.', 'S'), Option('per', 'Not mine alone.', 'X'))\n"
    text = ENGINE.replace("Engine, Start", "Engine, Option, Start").replace("    modules =", f"{options}    modules =")
    text = text.replace('"WORLD_SIZE"', '"WARM_UP": job.engine_options.get("warm-up", "no"), "WORLD_SIZE"')
    site = install(tmp_path / "site", "quietlaunch", text, quiet="Quiet")
    code, said = fleet(site, "launch", "--engine=quiet", "--warm_up", "3", "--dry-run", "train.py")
    assert code == 0 and "WARM_UP" in said, said
    assert "--warm-up S" in fleet(site, "launch", "--engine", "quiet", "--help-all")[1]
    assert "--warm-up" not in fleet(site, "launch", "--help-all")[1]
    code, said = fleet(site, "launch", "--warm-up", "3", "--dry-run", "train.py")
    assert code == 2 and "No such option: --warm-up" in said


@pytest.mark.parametrize(
    "name, why",
    [
        ("broken", "of brokenlaunch 1.5 cannot be loaded: ModuleNotFoundError: No module named 'nothere'"),
        ("bye", "of byelaunch 1.5 cannot be loaded: SystemExit: 0"),
        ("odd", "of oddlaunch 1.5 cannot be loaded: TypeError"),
        ("gone", "of oddlaunch 1.5 cannot be loaded: AttributeError"),
    ],
)
def test_a_broken_one_is_said_with_its_package(site: Path, name: str, why: str) -> None:
    code, said = fleet(site, "launch", "--engine", name, "--dry-run", "train.py")
    assert code == 2 and f"engine '{name}' {why}" in said and "hint: its entry point is" in said
    assert fleet(site, "launch", "--dry-run", "train.py")[0] == fleet(site, "hosts")[0] == 0


def test_a_transport_that_cannot_be_made_is_said_with_its_package(tmp_path: Path) -> None:
    text = "class Rude:\n    def __init__(self, options, *, hosts=()):\n        raise OSError('no radio')\n"
    site = install(tmp_path / "site", "rudelink", text, group="fleet.transports", rude="Rude")
    code, said = fleet(site, "--transport", "rude", "exec", "--", "true")
    assert code == 2 and "transport 'rude' of rudelink 1.5 cannot be loaded: OSError: no radio" in said, said


def test_they_are_not_looked_for_where_nobody_asks(site: Path) -> None:
    (site / "sitecustomize.py").write_text(
        "import os, sys\n"
        "sys.addaudithook(lambda event, args: event == 'open' and 'entry_points' in str(args[0]) and os._exit(77))\n"
    )
    for words in (["--help"], ["exec", "--dry-run", "--", "true"], ["launch", "--dry-run", "train.py"], ["hosts"]):
        code, said = fleet(site, *words)
        assert code == 0, said
    assert fleet(site, "launch", "--help")[0] == 77
