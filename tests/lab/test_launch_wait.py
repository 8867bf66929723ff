"""`fleet launch --wait` on real sshd: launches that wait for a live run start in the order in which they came."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.test_launch import COMMON, end_all, ready, summary, until  # noqa: F401
from tests.lab.virtual_lab import VirtualLab

Waits = Callable[[str, str], subprocess.Popen[bytes]]


@pytest.fixture
def waits(ready: VirtualLab, tmp_path: Path) -> Iterator[Waits]:  # noqa: F811
    """Starts a launch that waits, in a folder of its own, and returns once it has said for whom."""
    started: list[subprocess.Popen[bytes]] = []

    def run(name: str, notify: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / name
        folder.mkdir()
        with (folder / "said").open("wb") as said:
            process = ready.popen(
                *COMMON, "--wait", "--notify", notify, "./s.py", "ticks", "3", cwd=folder, stderr=said, stdout=said
            )
        started.append(process)
        until(lambda: b"waiting: " in (folder / "said").read_bytes())
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(300)
    end_all(ready, tmp_path)


def test_three_wait_for_one_and_the_others_start_in_order_when_one_is_cancelled(
    waits: Waits,
    ready: VirtualLab,  # noqa: F811
    tmp_path: Path,
) -> None:
    order = tmp_path / "order"
    (tmp_path / "one").mkdir()
    gate = "/tmp/fleet-wait-gate"
    for host in ready.names:
        ready.sh(host, f"rm -f {gate}")
    one = ready.popen(*COMMON, "./s.py", "ticks", "3", gate, cwd=tmp_path / "one")
    until(lambda: [*tmp_path.glob("one/runs/latest/events.jsonl")])
    until(lambda: "running" in (tmp_path / "one/runs/latest/events.jsonl").read_text())
    (run,) = [path.name for path in (tmp_path / "one/runs").glob("*-*")]
    first, second, third = (waits(name, f"echo {name} >> {order}") for name in ("first", "second", "third"))
    said = (tmp_path / "first/said").read_text()
    assert f"waiting: {ready.names[0][:-2]}[01-03]: run {run} of " in said and said.count("waiting: ") == 1, said
    assert "came before" in (tmp_path / "second/said").read_text()
    queue = ready.home / ".fleet/waiting"
    assert len([*queue.glob("*.json")]) == 3
    second.send_signal(signal.SIGINT)
    assert second.wait(300) == 130
    assert len([*queue.glob("*.json")]) == 2 and not [*(tmp_path / "second").glob("runs/*-*")]
    for host in ready.names:
        ready.sh(host, f"touch {gate}")
    one.communicate(timeout=300)
    assert [process.wait(300) for process in (one, first, third)] == [0, 0, 0], (tmp_path / "first/said").read_text()
    assert order.read_text().split() == ["first", "third"]
    began = [
        json.loads(next((tmp_path / name).glob("runs/*-*/run.json")).read_text())["started"]
        for name in ("one", "first", "third")
    ]
    assert began == sorted(began) and summary(tmp_path / "third")["exit_code"] == 0
    assert not [*queue.glob("*.json")]
