"""A terminal that nobody drains (Ctrl-S, a hung multiplexer) must not make fleet deaf."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.node.nodes import until, with_variable

FLEET = [sys.executable, "-c", "from fleet.cli.main import main; main()", "--transport", "local"]
FOREVER = "while :; do echo a line that nobody reads; done"
VERBS = {
    "ranks that write": ["launch", "--no-preflight", "--engine", "command", "--workdir", "/", "sh", "-c", FOREVER],
    "lines as they come": ["exec", "--no-fold", "--shell", FOREVER],
    "a long result": ["exec", "--shell", "seq 200000"],
}


def left(home: Path) -> list[int]:
    """What still runs in this test's home."""
    return with_variable("HOME", str(home))


@pytest.mark.parametrize(("what", "signum"), [*zip(VERBS, (2, 15, 2), strict=True)])
def test_one_signal_ends_it_and_what_it_started(what: str, signum: int, tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("n1 slots=1\n")
    head, terminal = os.openpty()
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [*FLEET, *VERBS[what]],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=env,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while select.select([], [terminal], [], 0)[1] and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        process.send_signal(signum)
        assert process.wait(300) in (130, -signum)
        until(lambda: not left(tmp_path))
    finally:
        process.kill()
        process.wait()
        os.close(head)
        os.close(terminal)


BUSY = """
import time
from fleet.cli import main
from fleet.cli.screen import terminal
note = terminal.note
terminal.note = lambda text: (time.sleep(0.5), note(text))
main.main()
"""


def test_a_signal_handler_that_a_busy_machine_holds_up(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("n1 slots=1\n")
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [
        sys.executable,
        "-c",
        BUSY,
        "--transport",
        "local",
        "launch",
        "--no-preflight",
        "--engine",
        "command",
        "--workdir",
        "/",
        "sh",
        "-c",
        "echo up; exec sleep 1000",
    ]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=env,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while not any(p.stat().st_size for p in tmp_path.glob("runs/*-*/*/rank0.out")) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        process.send_signal(2)
        assert process.wait(300) == 130
        until(lambda: not left(tmp_path))  # a guardian looks around before it ends
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("blocking", "seconds"), [(False, 1.0), pytest.param(True, 12.0, marks=pytest.mark.slow)])
def test_who_reads_a_pipe_slowly_has_every_line(blocking: bool, seconds: float, tmp_path: Path) -> None:
    """A pager, or a busy program; and an ssh beside us has made the pipe one that takes nothing when it is full."""
    (tmp_path / "hostfile").write_text("n1 slots=1\n")
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [*FLEET, *VERBS["ranks that write"][:-1], "seq -f 'line %g of some length' 20000; echo bye"]
    reader, writer = os.pipe()
    os.set_blocking(writer, blocking)
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.DEVNULL, env=env, cwd=tmp_path
    )
    os.close(writer)
    until(lambda: list(tmp_path.glob("runs/*-*/summary.json")))
    time.sleep(seconds)
    with os.fdopen(reader, "rb") as pipe:
        lines = pipe.read().splitlines()
    assert process.wait(300) == 0
    assert lines == [b"[n1:0] line %d of some length" % n for n in range(1, 20001)] + [b"[n1:0] bye"]
