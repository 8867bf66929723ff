"""Commands that follow a run, as processes of their own: what a signal to one is taken for, and who goes on with a run
that has lost its leader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import stubs
from tests.leaders import holder

MAIN = "from fleet.cli.main import main; main()"
# nobody waits for the end of its pause between two attempts
SLOW = f"import fleet.node.gang.verdict as it; it.PAUSE_SECONDS = it.MAX_PAUSE_SECONDS = 600.0; {MAIN}"
SAVES = "#!/bin/sh\ntrap 'sleep 1; exit 0' TERM\necho begun\nwhile :; do sleep 0.1; done\n"
FAILS = "#!/bin/sh\necho attempt $FLEET_ATTEMPT of $WORD\n[ $FLEET_ATTEMPT != 0 ] || exit 7\n"


@dataclass
class Command:
    """One that was typed; its output goes to a file."""

    process: subprocess.Popen[str]
    output: Path

    def said(self) -> str:
        return self.output.read_text()

    def told(self, signum: signal.Signals) -> tuple[int, str]:
        """Returns how it ends once it has got that signal, and all that it says."""
        self.process.send_signal(signum)
        return self.process.wait(120), self.said()


Type = Callable[..., Command]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Type]:
    """Starts a fleet command line in a folder with one host, this machine, and waits until it has said something."""
    monkeypatch.setenv("HOME", str(tmp_path))
    commands: list[Command] = []

    def start(*words: str, folder: str = "here", says: str = "", main: str = MAIN, t: str = SAVES) -> Command:
        place, output = tmp_path / folder, tmp_path / f"said{len(commands)}"
        place.mkdir(exist_ok=True)
        (place / "hostfile").write_text("localhost\n")
        (place / "t").write_text(t)
        (place / "t").chmod(0o755)
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        with output.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", main, *words], cwd=place, env=env, stdout=out, stderr=out, text=True
            )
        commands.append(command := Command(process, output))
        until(lambda: says in command.said() or process.poll() is not None)
        return command

    yield start
    for command in commands:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()


def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not met():
        assert time.monotonic() < end
        time.sleep(0.05)


def the_run(folder: Path) -> Path:
    (run,) = folder.glob("here/runs/*-*")
    return run


def test_sigterm_is_the_wish_to_stop_and_ranks_have_25_seconds_at_most(typed: Type, tmp_path: Path) -> None:
    """Whatever --grace says: who sends it (timeout, a CI's cancel, systemd) kills soon after."""
    words = ["--transport", "local", "launch", "--engine", "command", "--grace", "60", "./t"]
    code, said = typed(*words, says="begun").told(signal.SIGTERM)
    events = [json.loads(line) for line in (the_run(tmp_path) / "events.jsonl").read_text().splitlines()]
    assert code == 130 and [each["grace"] for each in events if each["event"] == "stop"] == [25.0], said
    assert json.loads((the_run(tmp_path) / "summary.json").read_text())["end"]["by"] == "interrupt"


def test_who_only_looks_on_is_told_so_when_it_ends(typed: Type, tmp_path: Path) -> None:
    words = ["--transport", "local"]
    assert (
        typed(*words, "launch", "--engine", "command", "--detach", "./t", says="goes on by itself").process.wait(120)
        == 0
    )
    run = the_run(tmp_path)
    try:
        for folder in ("elsewhere", "here"):  # there it follows the run for itself, here a process leads it
            code, said = typed(*words, "attach", run.name, folder=folder, says="logs in").told(signal.SIGINT)
            assert code == 0 and "no longer watching; the run goes on as before" in said, said
            assert "leaving the run to itself" not in said and "goes on as before" in said, said
        os.kill(holder(run), signal.SIGKILL)
        code, said = typed(*words, "attach", says="logs in").told(signal.SIGINT)
        assert code == 0 and "leaving the run to itself" in said and "goes on by itself" in said, said
    finally:
        assert typed(*words, "stop", run.name).process.wait(120) == 0
    until((run / "summary.json").exists)


@pytest.mark.parametrize(("signum", "cancelled"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_sigterm_to_who_watches_a_job_leaves_the_job(
    signum: signal.Signals, cancelled: bool, typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a login node is shut down, or a session on it ends."""
    gone = tmp_path / "gone"
    programs = {
        "sbatch": "echo 17",
        "squeue": f"[ -e {gone} ] && state=CANCELLED || state=PENDING\n"
        'echo "17|$state|N/A|$(realpath runs/latest/job.sh)|Priority"',
        "scancel": f"touch {gone}",
        "sacct": "exit 1",
        "scontrol": 'echo "JobId=17 UserId=me($(id -u)) Command=$(realpath runs/latest/job.sh) "',
    }
    stubs.put(tmp_path, programs, monkeypatch)
    code, said = typed("--on", "slurm", "launch", "--nodes", "1", "t.py", says="is job 17").told(signum)
    assert gone.exists() == cancelled, said
    assert (code, "goes on by itself" in said) == ((130, False) if cancelled else (0, True)), said


@pytest.mark.parametrize(("name", "alone"), [("WORD", 0.0), ("HF_TOKEN", 0.0), ("WORD", 200.0)])
def test_a_leader_that_is_killed_between_two_attempts_is_replaced(
    name: str, alone: float, typed: Type, tmp_path: Path
) -> None:
    """With the restarts that are left; not where it would lack a value that is kept nowhere, nor once its lease is
    over: then the run is, and who looks at its end starts nothing."""
    words = ["--transport", "local"]
    launch = ("launch", "--engine", "command", "--max-restarts", "2", "--env", f"{name}=hello", "./t")
    launched = typed(*words, *launch, says="restart 1 of 2 in", main=SLOW, t=FAILS)
    run = the_run(tmp_path)
    os.kill(holder(run), signal.SIGKILL)
    launched.process.wait(120)
    os.utime(run / "state.json", (0, time.time() - alone))
    attached = typed(*words, "attach", t=FAILS)
    code, said = attached.process.wait(120), " ".join(attached.said().split())
    told = json.loads((run / "summary.json").read_text())
    if alone:
        assert (code, told["attempt"]) == (7, 0), said
    elif name == "WORD":
        assert (code, told["attempt"]) == (0, 1) and "[localhost:0] attempt 1 of hello" in said, said
        assert [each["restart"] for each in told["restarts"]] == [1], told
    else:
        assert code == 7 and f"hint: 'fleet --transport local launch --again {run.name} --env HF_TOKEN" in said, said
