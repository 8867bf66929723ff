"""How long ranks have to save their work when a run is stopped: as long as a user gives them, or as peers may hang."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.lab.test_launch import Launch, background, launch, left_on, ready, summary, until  # noqa: F401 (fixtures)
from tests.lab.test_runs import Background
from tests.lab.virtual_lab import VirtualLab

# the second node's rank fails, where it is to; the others take 13 s to save their work
SAVES = """
save() { trap '' INT TERM; sleep 13; echo $1 > ~/saved; exit 0; }
trap 'save INT' INT
trap 'save TERM' TERM
echo begun
if [ "$1" = fails ] && [ "$NODE_RANK" = 1 ]; then sleep 2; exit 3; fi
while :; do sleep 0.1; done
"""


@pytest.fixture
def saves(ready: VirtualLab) -> VirtualLab:  # noqa: F811
    for host in ready.names:
        ready.inside(host, "sh", "-c", "cat > ~/work/saves.sh; rm -f ~/saved", stdin=SAVES.encode())
    return ready


def saved(lab: VirtualLab) -> dict[str, str]:
    """Returns the signal at which it was, by host."""
    found = {host: lab.sh(host, "cat ~/saved 2>/dev/null || true") for host in lab.names}
    return {host: name for host, name in found.items() if name}


@pytest.mark.parametrize(
    ("signum", "most", "name"),
    [(signal.SIGINT, 30.0, "INT"), pytest.param(signal.SIGTERM, 25.0, "TERM", marks=pytest.mark.slow)],
)
def test_a_stop_that_was_asked_for_waits_for_checkpoints(
    signum: signal.Signals,
    most: float,
    name: str,
    background: Background,  # noqa: F811
    saves: VirtualLab,
    tmp_path: Path,
) -> None:
    process = background("--nproc-per-node", "1", "./saves.sh", count=3)
    process.send_signal(signum)
    assert process.wait(300) == 130
    stop = next(
        line for line in (next(tmp_path.glob("runs/*-*/events.jsonl"))).read_text().splitlines() if '"stop"' in line
    )
    assert f'"grace": {most}' in stop and summary(tmp_path)["killed"] == []
    assert saved(saves) == dict.fromkeys(saves.names, name)


@pytest.mark.slow
def test_after_a_failure_nobody_waits_for_that(background: Background, saves: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    process = background("--nproc-per-node", "1", "./saves.sh", "fails", count=3)
    said = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 3 and saved(saves) == {} and "had not ended in time: ranks 0,2" in said, said
    until(lambda: not left_on(saves, tmp_path))


@pytest.mark.slow
def test_fleet_stop_waits_as_well(background: Background, saves: VirtualLab, tmp_path: Path) -> None:  # noqa: F811
    process = background("--nproc-per-node", "1", "./saves.sh", count=3)
    began = time.monotonic()
    saves.fleet("-i", "lab", "stop", "latest", cwd=tmp_path, check=True)
    assert process.wait(300) == 130 and time.monotonic() - began > 12
    assert saved(saves) == dict.fromkeys(saves.names, "TERM")


def test_a_script_that_leaves_its_training_in_the_background_is_told_so(
    launch: Launch,  # noqa: F811
    saves: VirtualLab,
    tmp_path: Path,
) -> None:
    """By hand nobody ends it; under fleet the run is over when the script is."""
    script = b"nohup ./s.py sleep 9 > /tmp/up &\nuntil [ -s /tmp/up ]; do sleep 0.1; done\nrm /tmp/up\necho begun\n"
    for host in saves.names:
        saves.inside(host, "sh", "-c", "cat > ~/work/behind.sh", stdin=script)
    done = launch("--nproc-per-node", "1", "behind.sh")
    assert done.returncode == 1 and summary(tmp_path)["killed"] == [0, 1, 2]
    said = "ended 3 processes that ranks 0-2 left behind: /usr/bin/python3 ./s.py sleep 9; `wait` keeps the run up"
    assert f"failed: {said}" in done.stderr and summary(tmp_path)["end"]["code"] == 1
