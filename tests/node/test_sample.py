"""Samples of what a node does, and the file that a run has of them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.codec import decode
from fleet.node.run.marks import marked
from fleet.node.run.sample import Sampler
from fleet.node.run.start import metrics
from fleet.protocol.messages.samples import Sample, Sampled
from tests.clock import HandClock
from tests.node.nodes import Running, answer, final, folder_of, ranks_argv, supervise_spec
from tests.nvml import COLD, IDLE, WELL, nvml

NO_GPU = dict.fromkeys(("uuid", "use", "power", "power_limit", "memory", "memory_total", "temperature", "clock"))


def test_gpus_are_read_from_the_drivers_library(run: str, home: Path, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "FLEET_RUN_ID": run}) as rank:
        lines = f"GPU-a 100 {WELL} 0x44 {rank.pid} {os.getpid()}", COLD, "lost", "GPU-old - - - - - - - -", IDLE
        found = answer("run.sample", {"every": 0.2, "count": 2}, home, env=nvml(tmp_path, *lines))
        rank.kill()
    sample = decode(Sampled, found)
    first, cold, lost, old, idle = sample["gpus"]
    assert first == {
        "index": 0,
        "uuid": "GPU-a",
        "use": 100,
        "power": 690.0,
        "power_limit": 700.0,
        "memory": 70_000_000_000,
        "memory_total": 85_000_000_000,
        "temperature": 61,
        "clock": 1755,
        "runs": [run],
        "others": 1,
        "throttle": ["power cap", "heat, hardware"],
    }
    assert lost == {**NO_GPU, "index": 2, "throttle": None, "runs": [], "others": None}
    assert old == {**lost, "index": 3, "uuid": "GPU-old", "others": 0}
    assert (cold["throttle"], idle["throttle"], idle["use"]) == ([], [], 0)
    assert sample["memory"] and sample["load"] is not None and sample["cpu"] is not None


def test_processes_that_are_not_known_are_of_nobody(home: Path, tmp_path: Path) -> None:
    """Their list is too long for the driver's answer, or one of them hides: it is of another container, or user."""
    lines = f"GPU-a 100 {WELL} 0 {os.getpid()} 4194303", f"GPU-b 100 {WELL} 0 {os.getpid()}"
    found = decode(Sampled, answer("run.sample", {"every": 0.2, "count": 1}, home, env=nvml(tmp_path, *lines)))
    assert [gpu["others"] for gpu in found["gpus"]] == [None, 1]


def test_a_kernel_that_counts_no_waits_shows_none(run: str, tmp_path: Path, socket_of: int) -> None:
    (rank,) = marked(run)
    put(tmp_path, {f"proc/{rank}/task/{rank}/schedstat": "0 0 0\n"})
    sampler = Sampler(run, root=f"{tmp_path}/")
    assert (sampler.sample()["run_cpu"], sampler.sample()["run_delay"]) == (None, None)
    put(tmp_path, {f"proc/{rank}/task/{rank}/schedstat": "1000 0 1\n"})
    assert sampler.sample()["run_delay"] == 0.0


def test_without_the_library_there_are_no_gpus(home: Path) -> None:
    with Running("run.sample", {"every": 0.2, "count": 3}, home) as program:
        frames = [frame.json() for frame in program.frames() if frame.kind == b"J"]
    assert len(frames) == 3 and all(decode(Sampled, it)["gpus"] == [] for it in frames)


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def state(busy: int, idle: int, received: int, sent: int, words: int) -> dict[str, str]:
    """Files of /proc and /sys with these counters."""
    line = "{}: {} 1 0 0 0 0 0 0 {} 1 0 0 0 0 0 0\n"
    lines = [line.format(name, received, sent) for name in ("lo", "eth0", "docker0")]
    port = "sys/class/infiniband/mlx5_0/ports/{}/counters/port_{}_data"
    return {
        "proc/stat": f"cpu  {busy} 0 0 {idle} 0 0 0 0 7 0\ncpu0 1 1 1 1\n",
        "proc/meminfo": "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\n",
        "proc/loadavg": "1.50 1.00 0.50 1/100 4242\n",
        "proc/net/dev": "Inter-| Receive\n face |bytes\n" + "".join(lines),
        "sys/class/net/eth0/device": "",
        **{port.format(number, way): f"{words}\n" for number in (1, 2) for way in ("rcv", "xmit")},
    }


def test_rates_are_those_since_the_last_sample(tmp_path: Path) -> None:
    clock, root = HandClock(), f"{tmp_path}/"
    put(tmp_path, state(100, 900, 1000, 0, 10))
    sampler = Sampler(clock=clock, root=root)
    put(tmp_path, state(175, 925, 3000, 500, 60))
    clock.now += 2.0
    found: Any = sampler.sample()
    assert (found["cpu"], found["load"], found["memory"], found["memory_total"]) == (75.0, 1.5, 400 << 10, 1000 << 10)
    assert (found["net"], found["ib"]) == ({"eth0": [1000, 250]}, {"mlx5_0": [200, 200]})
    put(tmp_path, state(180, 930, 10, 600, 70))  # an interface that began again
    clock.now += 2.0
    assert sampler.sample()["net"] == {"eth0": [None, 50]}
    decode(Sample, json.loads(json.dumps(found)))


def test_a_counter_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    clock = HandClock()
    put(tmp_path, {**state(100, 900, 1000, 0, 10), "sys/class/infiniband/mlx5_0/ports/2/counters/port_rcv_data": "?\n"})
    sampler = Sampler(clock=clock, root=f"{tmp_path}/")
    clock.now += 2.0
    assert sampler.sample()["ib"] == {"mlx5_0": [None, 0]}


TCP = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LINE = "   0: {}:1F90 {}:C350 01 {:08X}:{:08X} 01:00000014 00000000     0        0 {} 1 0000000000000000\n"


@pytest.fixture
def socket_of(run: str) -> Iterator[int]:
    """The kernel's number of a socket that a process of the run has."""
    with socket.socket() as it:
        rank = subprocess.Popen(
            ["sleep", "60"], env={**os.environ, "FLEET_RUN_ID": run}, pass_fds=[it.fileno()], stdin=subprocess.DEVNULL
        )
        with rank:
            yield os.fstat(it.fileno()).st_ino
            rank.kill()


def test_waiting_data_is_that_of_the_runs_own_connections(run: str, tmp_path: Path, socket_of: int) -> None:
    sampler = Sampler(run, root=f"{tmp_path}/")
    rows = [("A", "B", 40000, 0, socket_of), ("A", "C", 10, 40000, socket_of), ("A", "D", 40000, 40000, 1)]
    put(tmp_path, {"proc/net/tcp": TCP + "".join(LINE.format(*row) for row in rows) + "   3: cut o"})
    sampler.look()
    put(tmp_path, {"proc/net/tcp": TCP, "proc/net/tcp6": "odd\nodd odd\n\n"})
    assert sorted(sampler.sample()["waiting"]) == [("A", "B", 0.5, 0.0), ("A", "C", 0.0, 0.5)]


def test_what_waits_is_not_known_of_too_many_connections(run: str, tmp_path: Path, socket_of: int) -> None:
    sampler = Sampler(run, root=f"{tmp_path}/")
    put(tmp_path, {"proc/net/tcp": TCP + LINE.format("A", "B", 40000, 0, 1) * 50_000})
    assert sampler.sample()["waiting"] is None
    rows = [LINE.format("A", f"B{number}", 40000 * (number < 65), 0, socket_of) for number in range(100)]
    put(tmp_path, {"proc/net/tcp": TCP + "".join(rows)})
    assert sampler.sample()["waiting"] is None
    put(tmp_path, {"proc/net/tcp": TCP + "".join(rows[1:])})
    found = sampler.sample()
    assert len(decode(Sample, json.loads(json.dumps(found))).get("waiting") or ()) == 64


def test_what_a_node_does_not_show_is_not_known(tmp_path: Path) -> None:
    found = Sampler(root=f"{tmp_path}/").sample()
    assert {name: found[name] for name in ("cpu", "load", "memory")} == dict.fromkeys(("cpu", "load", "memory"))
    assert (found["net"], found["ib"], found["gpus"]) == ({}, {}, [])


def test_a_runs_folder_has_its_samples(run: str, home: Path, tmp_path: Path) -> None:
    sampled = f"grep -c 'run_cpu\": *[0-9]' {folder_of(home, run)}/metrics.jsonl"
    spec = supervise_spec(run, ranks_argv(f'until [ "$({sampled})" -ge 2 ]; do sleep 0.1; done'), sample=0.2)
    assert answer("run.supervise", spec, home, env=nvml(tmp_path, COLD))["event"] == "started"
    final(home, run)
    lines = (folder_of(home, run) / "metrics.jsonl").read_text().splitlines()
    samples = [decode(Sample, json.loads(line)) for line in lines]
    assert len(samples) >= 2 and samples[-1]["gpus"][0]["uuid"] == "GPU-cold"
    assert any(it.get("run_cpu") is not None for it in samples) and all("waiting" in it for it in samples)
    sizes = answer("run.follow", {"run": run, "offsets": {}}, home)["sizes"]
    assert sizes["metrics.jsonl"] == sum(len(line) + 1 for line in lines), "nothing comes after the end"


def test_a_run_needs_no_process_for_samples(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fails)
    it = metrics.Metrics({"run": run, "sample": 1.0}, str(tmp_path))  # type: ignore[typeddict-item]
    it.end()
    assert it.pid == 0 and "no samples are taken" in (tmp_path / "node.log").read_text()


def test_without_samples_there_is_no_file(run: str, home: Path) -> None:
    assert answer("run.supervise", supervise_spec(run, ranks_argv("sleep 0.5"), sample=0.0), home)["event"] == "started"
    final(home, run)
    assert not (folder_of(home, run) / "metrics.jsonl").exists()


class Ending(HandClock):
    """Removes a folder at a time, and keeps what its file held."""

    def __init__(self, folder: Path, until: float) -> None:
        super().__init__()
        self.folder, self.until, self.held, self.noted = folder, self.now + until, "", ""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if (self.folder / "node.log").exists():
            shutil.rmtree(self.folder.parent / "proc", ignore_errors=True)
        if self.now >= self.until and self.folder.exists():
            self.held = (self.folder / "metrics.jsonl").read_text()
            self.noted = (self.folder / "node.log").read_text()
            shutil.rmtree(self.folder)


def test_a_long_run_has_fewer_samples_by_and_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none once its folder is gone; one that fails costs none of the others."""
    folder = tmp_path / "run"
    folder.mkdir()
    clock = Ending(folder, 4000.0)
    sampler = Sampler(clock=clock, root=f"{tmp_path}/")
    monkeypatch.setattr(metrics, "HALVE_BYTES", 1000)
    put(tmp_path, {"proc/loadavg": "odd\n"})  # until the first sample has failed
    metrics.keep(sampler, str(folder / "metrics.jsonl"), 10.0, clock)
    times = [json.loads(line)["time"] for line in clock.held.splitlines()]
    pauses = [round(b - a) for a, b in zip(times, times[1:], strict=False)]
    assert pauses == sorted(pauses) and set(pauses) >= {10, 20, 40, 80} and len(pauses) < 60
    assert clock.noted.count("no sample was taken") == 1
