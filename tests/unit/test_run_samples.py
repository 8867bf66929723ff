"""What a head makes of the samples of a run's hosts, as they lie in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host, Node
from fleet.node.gang.elastic import gang_of
from fleet.ops.run.follow.samples import Samples
from fleet.ops.run.kept.record import RunRecord, about_of
from tests.clock import HandClock

RUN = "train-20260101-000000-0000"
HOSTS = ("a", "b", "c")
STATE = {"load": 1.0, "memory": 1, "memory_total": 2, "net": {}, "ib": {}, "cpu": 10.0, "run_cpu": 0.2}


class Followed:
    """Three hosts of a run, each with a rank."""

    def __init__(self, folder: Path, now: float = 0.0) -> None:
        parts = {host: (rank, 1) for rank, host in enumerate(HOSTS)}
        nodes = tuple(Node(Host(host, host), rank, 1, rank) for rank, host in enumerate(HOSTS))
        record = RunRecord(RUN, nodes, folder, about_of(parts))
        self.folder, self.clock, self.found = folder, HandClock(now), list[str]()
        self.gang = gang_of({host: (rank, range(rank, rank + 1)) for rank, host in enumerate(HOSTS)}, 0)
        self.samples = Samples(record, self.gang, self.notify, self.clock)

    def notify(self, level: str, text: str, event: Any) -> None:
        self.found += event.hosts

    def write(self, host: str, lacked: float, since: float, count: int = 6) -> None:
        (self.folder / host).mkdir(exist_ok=True)
        with (self.folder / host / "metrics.jsonl").open("a") as file:
            for at in range(count):
                line = {**STATE, "time": since + 10.0 * at, "gpus": [], "run_delay": lacked, "waiting": []}
                file.write(json.dumps(line) + "\n")

    def look(self) -> list[str]:
        self.clock.now += 10.0
        self.samples.look()
        return self.found


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    it = Followed(tmp_path)
    for host in HOSTS:
        it.write(host, 0.8 if host == "c" else 0.02, 0.0)
    return it


def test_a_slow_host_is_reported_once(followed: Followed) -> None:
    assert followed.look() == ["c"] and followed.look() == ["c"]
    slow = followed.samples.slow()
    assert slow is not None and list(slow.hosts) == ["c"]


def test_samples_of_an_earlier_attempt_name_no_host(tmp_path: Path) -> None:
    it = Followed(tmp_path, 100.0)
    for host in HOSTS:
        it.write(host, 0.8 if host == "c" else 0.02, 0.0)
    assert it.look() == []


def test_old_samples_of_a_host_are_not_compared_with_new_ones(followed: Followed) -> None:
    for host in "ab":
        followed.write(host, 0.02, 60.0)
    assert followed.look() == [] and followed.samples.slow() is None


def test_a_lost_host_is_not_blamed(followed: Followed) -> None:
    followed.gang.nodes["c"].lost = 1.0
    assert followed.look() == [] and followed.samples.slow() is None


def test_times_of_nodes_are_compared_by_one_clock(tmp_path: Path) -> None:
    it = Followed(tmp_path)
    for host in HOSTS:
        ahead = 1000.0 if host == "a" else 0.0
        it.gang.nodes[host].clock.receive(ahead, 0.0)
        it.write(host, 0.8 if host == "c" else 0.02, ahead)
    assert it.look() == ["c"]


@pytest.mark.parametrize("longer", [True, False])
def test_a_host_that_is_back_begins_anew(followed: Followed, longer: bool) -> None:
    """Its first samples were set aside; the new file may be longer than they were, or shorter."""
    followed.samples.used()
    (followed.folder / "aside").mkdir()
    (followed.folder / "c").rename(followed.folder / "aside" / "c")
    followed.write("c", 0.02, 100.0, 9 if longer else 2)
    used = followed.samples.used()
    assert used["c"].samples == (9 if longer else 2) and used["a"].samples == 6
    assert followed.samples.slow() is None


def test_what_a_node_makes_up_is_no_fault_of_the_head(followed: Followed) -> None:
    """Of GPUs that may draw next to nothing the share of that is immense, and a sum of shares too large."""
    gpu = {"index": 0, "uuid": None, "use": 1.0, "power": 1e17, "power_limit": 1e-291, "memory": 1, "memory_total": 2}
    gpu |= {"temperature": 1.0, "clock": 1.0, "throttle": [], "runs": [RUN], "others": 0}
    with (followed.folder / "a" / "metrics.jsonl").open("a") as file:
        for at in range(6):
            file.write(json.dumps({**STATE, "time": 60.0 + at, "gpus": [gpu]}) + "\n")
    used = followed.samples.used()
    assert used["a"].use == 1.0 and used["b"].samples == 6
