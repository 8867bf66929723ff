"""`--nnodes MIN:MAX` with real torchrun: a node that goes away is taken back, and the run ends well."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lab.test_launch import text, until
from tests.lab.virtual_lab import VirtualLab

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
    words = ("-i", "lab", "-w", f"{late},{there}", "--json", "launch", "--nnodes", "1:2", "--sync", "late.py")
    lab.stop_sshd(late)
    try:
        process = lab.popen(*words, cwd=tmp_path)
        until(lambda: list(tmp_path.glob(f"runs/late-*/{there}/rank*.out")))
    finally:
        lab.start_sshd(late)
    try:
        until(lambda: any("of 2" in text(path) for path in tmp_path.glob(f"runs/late-*/{late}/rank*.out")))
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
    words = ("-i", "lab", "-w", f"{first},{second}", "--json", "launch", "--nnodes", "1:2", "--sync", "elastic.py")
    process = lab.popen(*words, cwd=tmp_path)

    def worlds(attempt: str) -> int:
        """How often ranks of the second node have met in a world of two."""
        return sum("of 2" in text(path) for path in tmp_path.glob(f"runs/elastic-*/{attempt}{second}/rank*.out"))

    try:
        until(lambda: worlds("") == 1)
        lab.sh(second, "pkill -9 fleet-supervise")
        until(lambda: worlds("attempt0/") == 1 and worlds("") == 1)
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
