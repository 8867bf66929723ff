"""The kernel's log on a node: only what it said since the run began, and whose process that names."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

import pytest

from fleet.node.run.start import kernel_log
from fleet.node.run.start.kernel_log import MAX_LENGTH, MAX_LINES, KernelLog
from tests.clock import HandClock
from tests.node.nodes import LIMIT

NONE = "/no/such/kmsg"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder: rank 3 failed at time 100."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank3.json").write_text(json.dumps({"rank": 3, "pid": 4242, "status": None, "signal": 9, "time": 100.0}))
    return run


def dmesg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A machine on which dmesg prints that."""
    monkeypatch.setattr(kernel_log, "READER_SECONDS", LIMIT)
    (tmp_path / "dmesg").write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    (tmp_path / "dmesg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.skipif(not os.access(kernel_log.KMSG, os.W_OK), reason="the kernel's log is not ours to write")
def test_the_kernels_own_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, also where this program hardly gets the processor."""
    monkeypatch.setattr(kernel_log, "MAX_LINES", 1000)  # others speak there, too
    ours = f"fleet's tests {uuid.uuid4().hex}"
    clock = HandClock(time.monotonic())
    read = os.read

    def slowly(fd: int, size: int) -> bytes:
        clock.now += 0.3
        return read(fd, size)

    def say(text: str) -> None:
        with open(kernel_log.KMSG, "wb", buffering=0) as log:
            log.write(f"<6>{ours}: {text}\n".encode())

    say("Out of memory: Killed process 4242 (before)")
    log = KernelLog(clock=clock)
    say("nothing of interest")
    say("Out of memory: Killed process 4242 (python3)")
    say("I/O error " + "x" * 500)
    monkeypatch.setattr(kernel_log.os, "read", slowly)
    memory, disk = (line for line in log.relevant_lines(str(folder), None) if ours in line["text"])
    assert memory["text"].endswith("Killed process 4242 (python3)") and memory["rank"] == 3
    assert abs(memory["time"] - clock.now) < 60.0 and disk["rank"] is None and len(disk["text"]) == MAX_LENGTH


def test_where_only_dmesg_tells(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    now = clock.now
    before = f"[{now - 100 - now * 1e-3:12.6f}] Out of memory: Killed process 4242 (before)"
    said = [f"[{now + n:12.6f}] Out of memory: Killed process {4240 + n} (python3)" for n in range(9)]
    dmesg(tmp_path, monkeypatch, "\n".join([before, "no such line", *said]))
    told = KernelLog(clock=clock, kmsg=NONE).relevant_lines(str(folder), None)
    assert [line["text"].split()[5] for line in told] == [str(4240 + n) for n in range(9)][-MAX_LINES:]
    dmesg(tmp_path, monkeypatch, "\n".join([before, said[2]]))
    (line,) = KernelLog(clock=clock, kmsg=NONE).relevant_lines(str(folder), began=200.0)
    assert line["rank"] == 3 and line["time"] == now + 2


def test_no_program_is_started_for_ranks_that_ended_as_they_were_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dmesg(tmp_path, monkeypatch, f"[{(clock := HandClock()).now:.6f}] Out of memory: Killed process 1 (x)")
    assert len(KernelLog(clock=clock, kmsg=NONE).relevant_lines(str(folder), None)) == 1
    assert KernelLog(clock=clock, kmsg=NONE).relevant_lines(str(folder), began=99.0) is None


def test_a_container_is_told_by_its_cgroup(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dmesg(tmp_path, monkeypatch, "")
    log = KernelLog(kmsg=NONE)
    monkeypatch.setattr(kernel_log, "oom_kills", lambda: log.kills + 2)
    assert [line["text"] for line in log.relevant_lines(str(folder), None)] == [
        "oom_kill 2 in memory.events of the cgroup"
    ]


def test_a_machine_that_tells_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert KernelLog(kmsg=NONE).relevant_lines(str(folder), None) is None, "neither dmesg nor journalctl is there"
    dmesg(tmp_path, monkeypatch, "")
    assert KernelLog(kmsg=NONE).relevant_lines(str(folder), None) == []


@pytest.mark.parametrize("data", [None, b"", b"[1.0] Killed process 1\n", b"6,x,y;Killed process 1\n", b"6,1\n"])
def test_what_is_no_kernels_log(folder: Path, tmp_path: Path, data: bytes | None) -> None:
    """Containers are given /dev/null by that name, or a file."""
    if data is not None:
        (tmp_path / "kmsg").write_bytes(data)
    kmsg = os.devnull if data is None else str(tmp_path / "kmsg")
    assert KernelLog(0.0, kmsg=kmsg).relevant_lines(str(folder), None) == []
