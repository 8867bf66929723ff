"""Every launcher's job on four virtual hosts of uneven slots, with the real packages, over every transport.

    python -m tests.launchers [JOB|TRANSPORT...]      prints a table, as Markdown; exits 1 unless every cell is ok

A job's ranks tell who they are, train where it is about training, and one of them ends with a code of its own while
the others would go on: a cell is ok when all ranks' output is there, the run ends with that code soon after, names
that rank, and leaves nothing behind.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fleet.transport import TRANSPORTS
from tests.lab import test_launch_engines
from tests.lab.virtual_lab import VirtualLab, labs

EXAMPLES = Path(__file__).parents[1] / "examples"
SLOTS = (1, 2, 1, 2)
RANKS = sum(SLOTS)
SOON = 250.0  # seconds from the failure to the end of the launch, on a machine that others use, too: ranks sleep 600

# one rank of it ends on its own: what the others still write is there before
LAST = """
time.sleep(1)
if os.environ["RANK"] == "4":
    raise SystemExit(7)
time.sleep(600)
"""
DDP = f"""
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.full((2, 4), float(dist.get_rank()))).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("rank", dist.get_rank(), "of", dist.get_world_size(), sys.argv[1:], flush=True)
dist.barrier()
{LAST}"""
ZERO = f"""
import os, time
import deepspeed.ops
# spares a minute of C++ compiler for a reduction over shared memory
deepspeed.ops.__compatible_ops__.update(dict.fromkeys(deepspeed.ops.__compatible_ops__, False))
import torch.distributed
import zero1
end = deepspeed.comm.destroy_process_group
# all have said theirs before one leaves
deepspeed.comm.destroy_process_group = lambda: (torch.distributed.barrier(), time.sleep(1), end())
zero1.main()
{LAST}"""
# without a launcher: meets the others at the master's address by itself
PROGRAM = f"""
import os, socket, time
told = {{name: int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_PORT")}}
print("rank", told["RANK"], "of", told["WORLD_SIZE"], told, flush=True)
place = os.environ["MASTER_ADDR"], told["MASTER_PORT"]
if told["RANK"] == 0:
    listener = socket.create_server(place)
    peers = [listener.accept()[0] for _ in range(told["WORLD_SIZE"] - 1)]
    for peer in peers:
        peer.sendall(b"go")
else:
    while True:
        try:
            peer = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    assert peer.recv(2) == b"go"
{LAST}"""
# as it lies on each node: started by hand there, once
SFT = """#!/bin/bash
set -e
echo "node rank $NODE_RANK of $NNODES$RANK$WORLD_SIZE"
torchrun --nnodes "$NNODES" --node_rank "$NODE_RANK" --nproc_per_node "$NPROC_PER_NODE" \\
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" reduce.py
[ "$NODE_RANK" != 2 ] || exit 7
sleep 600
"""
REDUCE = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
assert one.item() == dist.get_world_size() == 6, one
dist.destroy_process_group()
"""
ZERO1 = json.loads((EXAMPLES / "zero1.json").read_text())
FILES = {
    "ddp.py": DDP,
    "zero.py": ZERO,
    "pkg/__init__.py": "",
    "pkg/train.py": DDP,
    "acc.py": test_launch_engines.ACCELERATE,
    "colossal.py": test_launch_engines.COLOSSALAI,
    "program": f"#!/usr/bin/env python3\n{PROGRAM}",
    "sft.sh": SFT,
    "reduce.py": REDUCE,
    "zero1.py": (EXAMPLES / "zero1.py").read_text(),
    "zero1.json": json.dumps(ZERO1),
    "zero2.json": json.dumps({**ZERO1, "zero_optimization": {"stage": 2}}),
}


@dataclass(frozen=True)
class Job:
    """says: what a rank writes, with {rank}. fails: the rank that does. config: of
    accelerate, as default.yaml on the head."""

    words: tuple[str, ...]
    says: str = f"rank {{rank}} of {RANKS}"
    ranks: int = RANKS
    fails: int = 4
    code: int = 7
    config: str = ""


CPU = ("--env", "DS_ACCELERATOR=cpu")
ZEROS = ("--engine", "deepspeed", *CPU)
YAML = ("--engine", "accelerate", "--config_file", "default.yaml", *CPU, "acc.py")
JOBS = {
    "torchrun": Job(("ddp.py", "--m", "1")),
    "torchrun -m": Job(("-m", "pkg.train", "--l", "2")),
    "deepspeed, ZeRO-1": Job(
        (*ZEROS, "zero.py", "--deepspeed_config", "zero1.json", "--steps", "2"),
        f"rank {{rank}} of {RANKS}: ZeRO-1, 2 steps",
    ),
    "deepspeed --module, ZeRO-2": Job(
        (*ZEROS, "--module", "zero", "--deepspeed_config", "zero2.json", "--steps", "2"),
        f"rank {{rank}} of {RANKS}: ZeRO-2, 2 steps",
    ),
    "accelerate, DDP": Job(YAML, "DistributedDataParallel", config=test_launch_engines.ACCELERATE_CPU),
    "accelerate, DeepSpeed plugin": Job(YAML, "DeepSpeedEngine", config=test_launch_engines.ACCELERATE_DEEPSPEED),
    "colossalai": Job(("--engine", "colossalai", "colossal.py"), "6 15.0", code=9),
    "command, once a slot": Job(("--engine", "command", "--per", "slot", "./program")),
    "bash sft.sh": Job(("sft.sh",), says="node rank {rank} of 4\n", ranks=4, fails=2),
}


def ready(lab: VirtualLab, folder: Path) -> Path:
    """The scripts on each host, in ~/launchers, and an inventory."""
    for host in lab.names:
        for name, text in FILES.items():
            path = f"launchers/{name}"
            lab.inside(host, "sh", "-c", f"cd && mkdir -p {Path(path).parent} && cat > {path}", stdin=text.encode())
        lab.sh(host, "chmod +x ~/launchers/program")
    hosts = {name: {"address": lab.address(name), "slots": n} for name, n in zip(lab.names, SLOTS, strict=True)}
    inventory = folder / "fleet.yaml"
    defaults = {"user": "root", "python": sys.executable, "workdir": "~/launchers"}
    inventory.write_text(json.dumps({"defaults": defaults, "hosts": hosts}))  # JSON is YAML
    return inventory


def faults(lab: VirtualLab, inventory: Path, job: Job, transport: str, folder: Path) -> list[str]:
    """What is wrong with this job over this transport."""
    words = ["-i", str(inventory), "--transport", transport, "launch", *job.words]
    (folder / "default.yaml").write_text(job.config)
    done = lab.fleet(*words, cwd=folder, timeout=400)
    runs = list(folder.glob("runs/*-*"))
    if done.returncode != job.code or len(runs) != 1:
        return [f"exit {done.returncode}, {len(runs)} runs: {done.stderr[-2000:]}"]
    (run,) = runs
    told = {int(path.stem[4:]): path.read_text() for path in run.glob("*/rank*.out")}
    wrong = [
        f"rank {r} said {told.get(r)!r}" for r in range(job.ranks) if job.says.format(rank=r) not in told.get(r, "")
    ]
    first = json.loads((run / "summary.json").read_text())["first_failure"]
    if (first["rank"], first["exit_code"]) != (job.fails, job.code):
        wrong.append(f"first failure: {first}")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    failed = next(e["time"] for e in events if e["event"] == "rank" and (e["status"] or e["signal"]))
    if events[-1]["time"] - failed > SOON:
        wrong.append(f"{events[-1]['time'] - failed:.1f} s from the failure to the end")
    for host in lab.names:
        left = lab.sh(host, f"grep -lsz FLEET_RUN_ID={run.name} /proc/[0-9]*/environ", check=False)
        wrong += [f"{host}: {left} is left"] if left else []
    return wrong


class Folders:
    """Temporary ones, as labs() wants them from pytest."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def mktemp(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=name, dir=self.base))


def main(asked: list[str]) -> int:
    remote = [name for name in TRANSPORTS.own if name != "local"]
    transports = [name for name in remote if name in asked] or remote
    jobs = {name: job for name, job in JOBS.items() if name in asked} or JOBS
    bad = False
    print("| job |", " | ".join(transports), "|\n| --- |", " | ".join("---" for _ in transports), "|", flush=True)
    with tempfile.TemporaryDirectory(prefix="fleet-launchers-") as base:
        folders = Folders(Path(base))
        made = labs(folders)  # type: ignore[arg-type]
        lab = next(made)(len(SLOTS)).enrol()
        try:
            inventory = ready(lab, lab.home)
            for name, job in jobs.items():
                cells = []
                for transport in transports:
                    began = time.monotonic()
                    wrong = faults(lab, inventory, job, transport, folders.mktemp("job"))
                    bad |= bool(wrong)
                    cells.append("; ".join(wrong) or f"ok, {time.monotonic() - began:.0f} s")
                print(f"| {name} |", " | ".join(cells), "|", flush=True)
        finally:
            next(made, None)  # takes the lab down
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
