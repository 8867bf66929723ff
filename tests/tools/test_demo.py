"""tools/demo around a fleet that only says how it was called; the lab suite runs it with the real one."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLEET = """#!/bin/sh
echo "$*" >>CALLS
case "$*" in *play*) test -d "$HOME" || exit 9; PLAY ;; esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "tools", tmp_path / "clone/tools", symlinks=True)
    (tmp_path / "clone/.venv/bin").mkdir(parents=True)
    return tmp_path / "clone"


def start(clone: Path, play: str) -> subprocess.Popen[str]:
    fleet = clone / ".venv/bin/fleet"
    fleet.write_text(FLEET.replace("CALLS", str(clone / "calls")).replace("PLAY", play))
    fleet.chmod(0o755)
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nowhere", "TMPDIR": str(clone.parent)}
    return subprocess.Popen(
        [clone / "tools/demo"],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def is_cleared(clone: Path) -> bool:
    calls = (clone / "calls").read_text().splitlines()
    return calls.count("lab down") == 1 and calls[-1] == "lab down" and not list(clone.parent.glob("fleet-demo.*"))


def test_it_shows_what_it_types_and_how_long_it_took(clone: Path) -> None:
    with start(clone, "true") as demo:
        text = demo.communicate(timeout=300)[0]
    assert demo.returncode == 0
    typed = re.findall(r"^\$ (.*)$", text, re.M)
    assert [line.split()[:3] for line in typed][:2] == [["fleet", "lab", "up"], ["fleet", "lab", "status"]]
    assert "password_file=~/.fleet/lab/demo/password" in typed[2]
    assert "\x1b" not in text  # it is not a terminal
    assert re.search(r"^The demo took \d+ s\.", text, re.M)
    assert is_cleared(clone)


def test_a_failure_is_its_exit_code(clone: Path) -> None:
    with start(clone, "exit 123") as demo:
        text = demo.communicate(timeout=300)[0]
    assert demo.returncode == 123
    assert "The demo took" not in text
    assert is_cleared(clone)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_an_end_at_any_step_takes_all_down(clone: Path, number: signal.Signals) -> None:
    with start(clone, f"kill -s {number.value} 0; sleep 30") as demo:
        demo.communicate(timeout=300)
    assert demo.returncode == 128 + number
    assert is_cleared(clone)
