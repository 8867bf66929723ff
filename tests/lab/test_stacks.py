"""Where the ranks of a run stand, and what is done about one in which none goes on."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.test_documents import unlike
from tests.lab.test_launch import events, left_on, until
from tests.lab.virtual_lab import VirtualLab
from tests.pages import BLOCKS
from tests.recorded import dump_of

DEADLOCK = """
import os, time, torch, torch.distributed as dist
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, row):
        if row == 2 and os.environ["RANK"] == "3":
            time.sleep(600)
        return torch.ones(4)
dist.init_process_group("gloo")
for step, batch in enumerate(torch.utils.data.DataLoader(Rows(), num_workers=1)):
    dist.all_reduce(batch)
    print("step", step, flush=True)
"""
HANGS_ONCE = """#!/usr/bin/python3
import os, time
print("up", flush=True)
if os.environ["FLEET_ATTEMPT"] == "0":
    if os.environ["RANK"] == "5":
        time.sleep(600)
    time.sleep(500)
"""
WAITS = """#!/usr/bin/python3
import os, sys, time
def load_shard():
    time.sleep(600)
rank = int(os.environ["RANK"])
if rank == 3:
    load_shard()
time.sleep(3 + 2 * rank)
took = "WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600013 milliseconds before timing out."
sys.stderr.write(f"[rank{rank}]:[E1122 06:00:00.000 ProcessGroupNCCL.cpp:632] Watchdog caught collective operation "
                 f"timeout: {took}\\n")
os.abort()
"""
PY_SPY = shutil.which("py-spy", path=str(Path(sys.executable).parent))


@pytest.fixture
def ready(lab: VirtualLab) -> Iterator[VirtualLab]:
    lab.enrol()
    for host in lab.names:
        lab.inside(host, "sh", "-c", "mkdir -p ~/hangs && cat > ~/hangs/dead.py", stdin=DEADLOCK.encode())
        lab.inside(host, "sh", "-c", "cd ~/hangs && cat > once && chmod +x once", stdin=HANGS_ONCE.encode())
    if PY_SPY:  # one host is without it
        lab.sh(lab.names[1], f"mv {PY_SPY} {PY_SPY}.away")
    yield lab
    for host in lab.names:
        lab.sh(host, "rm -r ~/hangs")
    if PY_SPY:
        lab.sh(lab.names[1], f"mv {PY_SPY}.away {PY_SPY}")


@pytest.mark.real
def test_a_deadlock_names_the_odd_rank_out(ready: VirtualLab, tmp_path: Path) -> None:
    words = ("--detach", "--nproc-per-node", "1", "--python", sys.executable, "--workdir", "~/hangs", "dead.py")
    ready.fleet("-i", "lab", "launch", *words, cwd=tmp_path, check=True, timeout=300)
    until(lambda: [p for p in tmp_path.glob("runs/*-*/*/rank3.out") if "step 1" in p.read_text()])
    other = tmp_path / "another head"
    other.mkdir()
    (run,) = json.loads(ready.fleet("-i", "lab", "ps", "--json", cwd=other, check=True).stdout)["runs"]
    stacks = ("-i", "lab", "stacks", run["run"])

    def dead() -> bool:
        nonlocal said
        said = json.loads(ready.fleet(*stacks, "--json", cwd=other, check=True, timeout=300).stdout)
        return said["summary"].startswith("ranks 0-2 in all_reduce")

    said: dict[str, object] = {}
    until(dead)
    assert str(said["summary"]).startswith("ranks 0-2 in all_reduce (dead.py:12); rank 3 on "), said["summary"]
    assert str(said["summary"]).endswith(f"{ready.names[3]} in DataLoader (dead.py:11)"), said["summary"]
    (shown,) = [json.loads(block.text) for block in BLOCKS if '{"verb": "stacks"' in block.text]
    assert unlike(shown, said) == [], "as docs/json.md has it"
    by = {name: told["ranks"][0]["by"] for name, told in said["hosts"].items()}  # type: ignore[attr-defined]
    usual = "py-spy" if PY_SPY else "faulthandler"
    assert by == {name: "faulthandler" if name == ready.names[1] else usual for name in ready.names}
    shown = ready.fleet(*stacks, "--rank", "3", "--no-native", cwd=other, check=True, timeout=300).stdout
    assert "in DataLoader (dead.py:11)" in shown and "_next_data" in shown and "all_reduce" not in shown, shown
    none = ready.fleet(*stacks, "--rank", "7", cwd=other, timeout=300)
    assert none.returncode == 2 and "has no rank 7\n  hint: it has ranks 0-3\n" in none.stderr, none.stderr
    (run,) = json.loads(ready.fleet("-i", "lab", "ps", "--json", cwd=other, check=True).stdout)["runs"]
    assert (run["state"], run["ranks_ended"]) == ("running", 0), "nothing came of it"
    ready.fleet("-i", "lab", "stop", run["run"], "--grace", "1", cwd=other, check=True)
    over = ready.fleet("-i", "lab", "stacks", run["run"], cwd=other)
    assert over.returncode == 2 and "is over: stopped" in over.stderr, over.stderr


def test_a_run_that_hangs_is_told_with_its_stacks_and_started_again(ready: VirtualLab, tmp_path: Path) -> None:
    words = ("--stall-timeout", "12", "--grace", "1", "--workdir", "~/hangs", "--engine", "command")
    launch = ("-i", "lab", "launch", *words, "--nproc-per-node", "2")
    done = ready.fleet(*launch, "--max-restarts", "1", "./once", cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    (stalled,), (stacks,), (restart,) = (events(tmp_path, name) for name in ("stalled", "stacks", "restart"))
    assert 12 <= stalled["seconds"] < 200 and stalled["ranks"] == list(range(8))
    (odd,) = [place for place in stacks["places"] if place["odd"]]
    assert (odd["ranks"], odd["hosts"]) == ([5], [ready.names[2]])
    assert (restart["what"], restart["rank"], restart["exit_code"]) == ("stalled", 5, 124)
    text = Path(stacks["file"]).read_text()
    assert f"rank 5 on {ready.names[2]} in <module> (once:6), the odd one out" in text, text
    assert stacks["message"] in done.stderr and stacks["message"] in restart["message"]
    assert not left_on(ready, tmp_path)

    (tmp_path / "again").mkdir()
    ended = ready.fleet(*launch, "./once", cwd=tmp_path / "again", timeout=300)
    assert ended.returncode == 124 and "failed: no rank wrote anything for 12 s (--stall-timeout)" in ended.stderr


@pytest.mark.parametrize("each", [1, 2])
def test_who_is_missing_where_others_timed_out_is_shown_where_it_stands(
    ready: VirtualLab, tmp_path: Path, each: int
) -> None:
    """The others time out one after the other, and only the first does so before a stop would come: of its node, too,
    and that one is not ended before it is known where its other ranks are."""
    hosts = ready.names[: 4 // each]
    for host in ready.names:
        ready.inside(host, "sh", "-c", "cd ~/hangs && cat > waits && chmod +x waits", stdin=WAITS.encode())
    words = ("--engine", "command", "--grace", "1", "--nproc-per-node", str(each), "--per", "slot")
    line = ("-w", ",".join(hosts), "launch", *words, "--workdir", "~/hangs", "./waits")
    done = ready.fleet("-i", "lab", *line, cwd=tmp_path, timeout=300)
    assert done.returncode == 134, done.stderr
    (stacks,) = events(tmp_path, "stacks")
    assert f"rank 3 on {hosts[-1]} in load_shard (waits:4)" in stacks["message"] + Path(stacks["file"]).read_text()
    assert "why: ranks 0-2 waited in ALLREDUCE 4711; rank 3 was in load_shard (waits:4)" in done.stderr, done.stderr
    after = done.stderr.partition("next:\n")[2].splitlines()
    assert after[0].startswith("  cat runs/") and after[1].endswith("--rank 3 --tail 100"), after
    assert not left_on(ready, tmp_path)


SKIPS = """
import os, time, torch, torch.distributed as dist
def load_shard():
    {how}
dist.init_process_group("gloo")
for step in range(9):
    if step == 2 and os.environ["RANK"] == "3":
        load_shard()
    dist.all_reduce(torch.ones(4))
    print("step", step, flush=True)
"""


@pytest.mark.real
@pytest.mark.parametrize("how", ["time.sleep(600)", "while True: pass"])
def test_under_gloo_a_rank_that_skips_a_collective_is_named_with_its_line(
    ready: VirtualLab, tmp_path: Path, how: str
) -> None:
    for host in ready.names:
        ready.inside(host, "sh", "-c", "cat > ~/hangs/skips.py", stdin=SKIPS.replace("{how}", how).encode())
    words = ("--detach", "--nproc-per-node", "1", "--python", sys.executable, "--workdir", "~/hangs", "skips.py")
    ready.fleet("-i", "lab", "launch", *words, cwd=tmp_path, check=True, timeout=300)
    until(lambda: [p for p in tmp_path.glob("runs/*-*/*/rank3.out") if "step 1" in p.read_text()])
    said: dict[str, Any] = {}

    def all_wait() -> bool:
        nonlocal said
        said = json.loads(ready.fleet("-i", "lab", "stacks", "latest", "--json", cwd=tmp_path, check=True).stdout)
        return str(said["summary"]).startswith("ranks 0-2 in all_reduce (skips.py:9); rank 3 on ")

    until(all_wait)
    assert [place["odd"] for place in said["places"]][-1] and said["places"][-1]["ranks"] == [3], said["places"]
    assert said["summary"].endswith("(skips.py:4)") and said["hang"] is None, said["summary"]
    ready.fleet("-i", "lab", "stop", said["run"], "--grace", "1", cwd=tmp_path, check=True)


RECORDS = '''#!/usr/bin/python3
"""Stands in for a rank under NCCL whose torch records its collectives: it writes a dump at a time-out, or if its pipe
is written to."""
import contextlib, json, os, pickle, sys, time
rank = int(os.environ["RANK"])
file = os.environ.get("TORCH_FR_DUMP_TEMP_FILE") or os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
fifo = "%s%d.pipe" % (os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"], rank)
os.mkfifo(fifo)
pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
with open("dumps.json") as f:
    dump = json.load(f)[rank]
for entry in dump["entries"]:
    entry["process_group"] = tuple(entry["process_group"])
def write():
    with open("%s%d" % (file, rank), "wb") as f:
        pickle.dump(dump, f, protocol=2)
print("up", flush=True)
begun, seconds = time.time(), float(sys.argv[1])
def step():
    while time.time() - begun < seconds or rank == 3:
        with contextlib.suppress(BlockingIOError):  # opened by who writes, and not written yet
            if os.read(pipe, 9):
                write()
        time.sleep(0.05)
step()
write()
took = "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600013 milliseconds before timing out."
sys.stderr.write("[rank%d]:[E1122 06:00:00.000 ProcessGroupNCCL.cpp:632] Watchdog caught collective operation "
                 "timeout: %s\\n" % (rank, took))
os.abort()
'''
WAIT = "ranks 0-2 wait in all_reduce 2 of default_pg (ranks 0-3), pending for "
MISSES = " s; rank 3 has not come: it is in step (records:"


def test_flight_recorders_name_the_collective_and_who_did_not_come(ready: VirtualLab, tmp_path: Path) -> None:
    """In `fleet stacks`, at a stall and at a time-out; every rank's Python stands at the same line, as under NCCL."""
    calls = [("0", "all_reduce", (8,), True), ("0", "all_reduce", (8,), False)]
    dumps = [dump_of(calls[: 1 + (rank != 3)], {"0": range(4)}, written=time.time()) for rank in range(4)]
    for host in ready.names:
        ready.inside(host, "sh", "-c", "cd ~/hangs && cat > records && chmod +x records", stdin=RECORDS.encode())
        ready.inside(host, "sh", "-c", "cat > ~/hangs/dumps.json", stdin=json.dumps(dumps).encode())
    launch = ("-i", "lab", "launch", "--flight-recorder", "--engine", "command", "--grace", "1", "--workdir", "~/hangs")
    ready.fleet(*launch, "--detach", "./records", "600", cwd=tmp_path, check=True)
    shown = ready.fleet("-i", "lab", "stacks", "latest", cwd=tmp_path, check=True).stdout
    assert shown.splitlines()[1].startswith(WAIT) and MISSES in shown, shown
    (run,) = json.loads(ready.fleet("-i", "lab", "ps", "--json", cwd=tmp_path, check=True).stdout)["runs"]
    ready.fleet("-i", "lab", "stop", run["run"], "--grace", "1", cwd=tmp_path, check=True)

    for name, words, code in (("stall", ("--stall-timeout", "6"), 124), ("time-out", (), 134)):
        (tmp_path / name).mkdir()
        seconds = "600" if name == "stall" else "4"
        done = ready.fleet(*launch, *words, "./records", seconds, cwd=tmp_path / name, timeout=300)
        assert done.returncode == code, done.stderr
        (stacks,) = events(tmp_path / name, "stacks")
        assert (stacks["hang"]["missing"], stacks["hang"]["unknown"]) == ([3], []), stacks
        assert WAIT in done.stderr and MISSES in done.stderr and "hint: what did rank 3 do meanwhile?" in done.stderr, (
            done.stderr
        )
        assert MISSES in Path(stacks["file"]).read_text()
        assert not left_on(ready, tmp_path / name)
