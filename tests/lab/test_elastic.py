"""`--nnodes MIN:MAX` with real torchrun: a node that goes away is taken back, and the run ends well."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.lab.test_launch import text, until
from tests.lab.virtual_lab import VirtualLab

pytestmark = pytest.mark.real
LAUNCH = ("--json", "launch", "--python", sys.executable, "--nnodes")
SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
print(f"rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
over = torch.zeros(1)
while not over:
    over[0] = os.path.exists("/root/elastic-over")
    dist.all_reduce(over)
    time.sleep(0.2)
print("over", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_a_node_that_comes_late_is_taken_in(lab: VirtualLab, tmp_path: Path) -> None:
    """It is the first of the inventory; its code comes with it."""
    lab.enrol()
    (tmp_path / "late.py").write_text(SCRIPT)
    late, there = lab.names[:2]
    lab.sh(there, "rm -f /root/elastic-over")
    words = ("-i", "lab", "-w", f"{late},{there}", *LAUNCH, "1:2", "--sync", "late.py")
    lab.stop_sshd(late)
    try:
        process = lab.popen(*words, cwd=tmp_path)
        until(lambda: list(tmp_path.glob(f"runs/late-*/{there}/rank*.out")), process=process)
    finally:
        lab.start_sshd(late)
    try:
        until(
            lambda: any("of 2" in text(path) for path in tmp_path.glob(f"runs/late-*/{late}/rank*.out")),
            process=process,
        )
    finally:
        lab.sh(there, "touch /root/elastic-over")
        lab.sh(late, "touch /root/elastic-over")
        out, err = process.communicate(timeout=300)
    events = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 0, err
    assert [event["host"] for event in events if event["event"] in ("away", "back")] == [late, late]
    assert f"starts with 1 of 2 nodes ({late}: " in out.decode() and events[-1]["incomplete_logs"] == []
    for name in lab.names:
        lab.sh(name, "rm -rf /root/work /root/elastic-over")


def test_a_node_that_went_is_taken_back(lab: VirtualLab, tmp_path: Path) -> None:
    lab.enrol()
    (tmp_path / "elastic.py").write_text(SCRIPT)
    first, second = lab.names[:2]
    lab.sh(first, "rm -f /root/elastic-over")
    words = ("-i", "lab", "-w", f"{first},{second}", *LAUNCH, "1:2", "--sync", "elastic.py")
    process = lab.popen(*words, cwd=tmp_path)

    def worlds(attempt: str) -> int:
        """How often ranks of the second node have met in a world of two."""
        return sum("of 2" in text(path) for path in tmp_path.glob(f"runs/elastic-*/{attempt}{second}/rank*.out"))

    try:
        until(lambda: worlds("") == 1, process=process)
        lab.sh(second, "pkill -9 fleet-supervise")
        until(lambda: worlds("attempt0/") == 1 and worlds("") == 1, process=process)
    finally:
        lab.sh(first, "touch /root/elastic-over")
        out, err = process.communicate(timeout=300)
    events = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 0, err
    told = [(event["event"], event["host"]) for event in events if event["event"] in ("away", "back", "stop")]
    assert told == [("away", second), ("back", second)]
    assert events[-1]["ok"] and events[-1]["first_failure"] is None
    for name in lab.names:
        lab.sh(name, "rm -rf /root/work /root/elastic-over")


ALONE = """
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists("/root/elastic-end"):
    time.sleep(0.1)
with open("/root/elastic-end") as f:
    code = int(f.read())
os.remove("/root/elastic-end")
sys.exit(code)
"""


def test_a_rank_that_too_few_nodes_are_left_for_ends_the_run(lab: VirtualLab, tmp_path: Path) -> None:
    """One fails while the others run, and is started again; another fails once they are done: nobody meets it."""
    lab.enrol()
    (tmp_path / "alone.py").write_text(ALONE)
    names = lab.names[:3]
    for name in names:
        lab.sh(name, "rm -f /root/elastic-end")
    words = ("-i", "lab", "-w", ",".join(names), *LAUNCH, "2:3", "--sync", "alone.py")
    process = lab.popen(*words, cwd=tmp_path)

    def ends(host: str, code: int) -> None:
        lab.sh(host, f"echo {code} > /root/elastic-end.new && mv /root/elastic-end.new /root/elastic-end")

    def up() -> int:
        (run,) = json.loads(lab.fleet("-i", "lab", "--json", "ps", check=True).stdout)["runs"]
        assert run["ranks_up"] == sum(node["ranks_up"] for node in run["nodes"].values())
        return int(run["ranks_up"])

    def starts() -> int:
        return sum(text(path).count("of 3") for path in tmp_path.glob("runs/alone-*/*/rank*.out"))

    try:
        until(lambda: starts() == 3, process=process)
        assert up() == 3
        ends(names[1], 5)
        until(lambda: starts() == 6, process=process)
        assert up() == 3, "ranks of before have left records of their ends"
        ends(names[0], 0)
        ends(names[1], 0)
        until(lambda: up() == 1, process=process)
        ends(names[2], 7)
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    events = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 7, err
    failure = events[-1]["first_failure"]
    assert (failure["host"], failure["exit_code"], failure["what"]) == (names[2], 7, "rank")
    assert "1 of 3 nodes can start ranks again, --nnodes asks for 2" in failure["message"] and events[-1]["next"]
    for name in lab.names:
        lab.sh(name, "rm -rf /root/work /root/elastic-end")
