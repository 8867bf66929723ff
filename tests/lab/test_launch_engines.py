"""`fleet launch` with the real torchrun, DeepSpeed, accelerate and Colossal-AI: ranks as planned on uneven nodes,
fail-fast."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.test_launch import until
from tests.lab.virtual_lab import VirtualLab
from tests.other_packages import ENGINE, install
from tests.standin import standin_python

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = """
import json, os, sys, time
names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
print(json.dumps([{k: int(os.environ[k]) for k in names}, sys.argv[1:]]), flush=True)
while os.environ["RANK"] == "5":
    if os.path.exists("all-have-spoken"):
        raise SystemExit(3)
    time.sleep(0.1)
time.sleep(600)
"""
DEEPSPEED = """
import os, sys, time
import deepspeed.ops
# spares a minute of C++ compiler for a reduction over shared memory
deepspeed.ops.__compatible_ops__.update(dict.fromkeys(deepspeed.ops.__compatible_ops__, False))
import torch.distributed
import zero1
end = deepspeed.comm.destroy_process_group
# all have said theirs before one leaves
deepspeed.comm.destroy_process_group = lambda: (torch.distributed.barrier(), time.sleep(1), end())
zero1.main()
if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 2:
    raise SystemExit(7)
time.sleep(600)
"""
# as `accelerate config` writes them on one of the machines, by hand for pdsh and mpirun
ACCELERATE_CPU = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
use_cpu: true
main_process_ip: 192.0.2.1
main_process_port: 29500
machine_rank: 0
num_machines: 4
num_processes: 16
rdzv_backend: c10d
mpirun_config: {mpirun_hostfile: /root/hostfile}
"""
ACCELERATE_DEEPSPEED = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_hostfile: /root/hostfile
  deepspeed_multinode_launcher: pdsh
  gradient_accumulation_steps: 1
  zero3_init_flag: false
  zero_stage: 1
main_process_ip: 192.0.2.1
main_process_port: 29500
machine_rank: 0
num_machines: 4
num_processes: 16
mixed_precision: 'no'
"""
ACCELERATE = """
import sys, time
import torch
from accelerate import Accelerator, InitProcessGroupKwargs
accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.utils.data.TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
model, optimizer, batches = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(rows, batch_size=4))
for x, y in batches:
    loss = torch.nn.functional.mse_loss(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
print(type(model).__name__, accelerator.local_process_index, ranks, sys.argv[1:], flush=True)
accelerator.wait_for_everyone()
time.sleep(1)
if accelerator.process_index == accelerator.num_processes - 2:
    raise SystemExit(7)
time.sleep(600)
"""
COLOSSALAI = """
import sys, time
import colossalai, torch
colossalai.launch_from_torch(seed=42)
ranks = torch.tensor([float(torch.distributed.get_rank())])
torch.distributed.all_reduce(ranks)
print(torch.distributed.get_world_size(), ranks.item(), sys.argv[1:], flush=True)
torch.distributed.barrier()
time.sleep(1)
if torch.distributed.get_rank() == torch.distributed.get_world_size() - 2:
    raise SystemExit(9)
time.sleep(600)
"""


def uneven(lab: VirtualLab, folder: Path, slots: list[int], python: str = sys.executable) -> Path:
    """An inventory of the lab's hosts with these slots."""
    lines = [f"  {h}: {{address: {lab.address(h)}, slots: {n}}}" for h, n in zip(lab.names, slots, strict=True)]
    path = folder / "fleet.yaml"
    defaults = f"defaults: {{user: root, python: {python}, workdir: ~/engines}}"
    path.write_text("\n".join([defaults, "hosts:", *lines]))
    return path


def two(lab: VirtualLab, folder: Path, python: str = sys.executable) -> list[str]:
    """Options for two hosts of one and of two slots: each rank costs seconds of imports."""
    return ["-i", str(uneven(lab, folder, [1, 2, 1, 1], python)), "-w", ",".join(lab.names[:2])]


def put(lab: VirtualLab, **files: str) -> None:
    for host in lab.names:
        for name, text in files.items():
            line = f"cd && mkdir -p engines && cat > engines/{name.replace('_', '.')}"
            lab.inside(host, "sh", "-c", line, stdin=text.encode())


def ended(folder: Path) -> tuple[dict[str, Any], float]:
    """(summary, seconds from the first failure to the end of the launch)."""
    (run,) = folder.glob("runs/*-*")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    failed = next(e["time"] for e in events if e["event"] == "rank" and (e["status"] or e["signal"]))
    return json.loads((run / "summary.json").read_text()), events[-1]["time"] - failed


@pytest.fixture
def ready(lab: VirtualLab) -> VirtualLab:
    return lab.enrol()


@pytest.mark.parametrize(
    "python", [standin_python(), pytest.param(sys.executable, marks=pytest.mark.real)], ids=["standin", "real"]
)
def test_torchrun(ready: VirtualLab, tmp_path: Path, python: str) -> None:
    put(ready, train_py=TORCHRUN)
    inventory = uneven(ready, tmp_path, [1, 2, 3, 2], python)
    args = ["--m", "1", "--l", "--r", "$$", "${local_rank}", "--", ""]
    ready.sh(ready.names[2], "rm -f ~/engines/all-have-spoken")
    run = ready.popen("-i", str(inventory), "launch", "train.py", *args, cwd=tmp_path)
    spoken = "runs/train-*/*/rank*.out"
    until(lambda: sum("]]" in path.read_text() for path in tmp_path.glob(spoken)) == 8 or run.poll() is not None)
    ready.sh(ready.names[2], "touch ~/engines/all-have-spoken")
    err = run.communicate(timeout=300)[1].decode()
    assert run.returncode == 3, err
    said = {}
    for path in tmp_path.glob("runs/*-*/*/rank*.out"):
        env, argv = json.loads(path.read_text())
        assert argv == args
        said[env["RANK"]] = (path.parent.name, env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"], env["WORLD_SIZE"])
    planned = [(name, local, n, 8) for name, n in zip(ready.names, [1, 2, 3, 2], strict=True) for local in range(n)]
    assert said == dict(enumerate(planned))
    summary, seconds = ended(tmp_path)
    first = summary["first_failure"]
    assert (first["host"], first["node_rank"], first["rank"]) == (ready.names[2], 2, 5) and seconds < 250


RESTARTED = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(total := torch.ones(1))
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if dist.get_rank() == 1 and attempt < 1:
    sys.exit(3)
dist.all_reduce(total)
print("sum", int(total), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.real
def test_torchrun_restarts(ready: VirtualLab, tmp_path: Path) -> None:
    """A rank dies; all of them meet again, in a store without what the last attempt left."""
    put(ready, again_py=RESTARTED)
    inventory = uneven(ready, tmp_path, [1, 1, 1, 1])
    words = ("-i", str(inventory), "-w", ",".join(ready.names[:2]), "launch", "--max-restarts", "3", "again.py")
    done = ready.fleet(*words, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [path.read_text() for path in tmp_path.glob("runs/*-*/*/rank*.out")] == ["sum 4\n"] * 2


@pytest.mark.real
def test_deepspeed(ready: VirtualLab, tmp_path: Path) -> None:
    files = {p.name.replace(".", "_"): p.read_text() for p in (EXAMPLES / "zero1.py", EXAMPLES / "zero1.json")}
    put(ready, train_py=DEEPSPEED, **files)
    options = ["--engine", "deepspeed", "--env", "DS_ACCELERATOR=cpu"]
    script = ["train.py", "--deepspeed_config", "zero1.json", "--steps", "2"]
    done = ready.fleet(*two(ready, tmp_path), "launch", *options, *script, cwd=tmp_path, timeout=300)
    assert done.returncode == 7, done.stderr
    for rank in range(3):
        (path,) = tmp_path.glob(f"runs/*-*/*/rank{rank}.out")
        assert f"rank {rank} of 3: ZeRO-1, 2 steps" in path.read_text()
    summary, seconds = ended(tmp_path)
    first = summary["first_failure"]
    assert (first["host"], first["node_rank"], first["rank"]) == (ready.names[1], 1, 1) and seconds < 250


@pytest.mark.real
@pytest.mark.parametrize(
    ("config", "model"), [(ACCELERATE_CPU, "DistributedDataParallel"), (ACCELERATE_DEEPSPEED, "DeepSpeedEngine")]
)
def test_accelerate(ready: VirtualLab, tmp_path: Path, config: str, model: str) -> None:
    """Its configuration is unmodified; the hosts, processes, address and launcher in it are of another cluster."""
    put(ready, train_py=ACCELERATE)
    (tmp_path / "default.yaml").write_text(config)
    options = ["--engine", "accelerate", "--config-file", "default.yaml", "--env", "DS_ACCELERATOR=cpu"]
    done = ready.fleet(*two(ready, tmp_path), "launch", *options, "train.py", "$$", cwd=tmp_path, timeout=300)
    assert done.returncode == 7, done.stderr
    for rank, local in enumerate([0, 0, 1]):
        (path,) = tmp_path.glob(f"runs/*-*/*/rank{rank}.out")
        assert f"{model} {local} [0, 1, 2] ['$$']" in path.read_text()
    summary, seconds = ended(tmp_path)
    first = summary["first_failure"]
    assert (first["host"], first["node_rank"], first["rank"]) == (ready.names[1], 1, 1) and seconds < 250
    for host in ready.names[:2]:
        assert ready.sh(host, "ls -d ~/.deepspeed_env ~/.cache/huggingface/accelerate", check=False) == ""


@pytest.mark.real
def test_accelerate_reads_no_default_configuration(ready: VirtualLab, tmp_path: Path) -> None:
    put(ready, train_py='import os; print(os.environ["ACCELERATE_MIXED_PRECISION"], os.environ["RANK"])')
    where = two(ready, tmp_path)
    folder = "~/.cache/huggingface/accelerate"
    config = "distributed_type: MULTI_GPU\nnum_machines: 2\nmixed_precision: bf16\n"
    ready.sh(ready.names[1], f"mkdir -p {folder} && printf '{config}' > {folder}/default_config.yaml")
    try:
        done = ready.fleet(*where, "launch", "--engine", "accelerate", "--cpu", "train.py", cwd=tmp_path, timeout=300)
    finally:
        ready.sh(ready.names[1], f"rm -r {folder}")
    assert done.returncode == 0, done.stderr
    said = sorted(path.read_text() for path in tmp_path.glob("runs/*-*/*/rank*.out"))
    assert said == ["no 0\n", "no 1\n", "no 2\n"]
    unread = f"{ready.names[1]}: the launcher's own configuration is not read: /root/.cache/huggingface/accelerate/"
    assert unread in done.stderr


@pytest.mark.real
def test_colossalai(ready: VirtualLab, tmp_path: Path) -> None:
    put(ready, train_py=COLOSSALAI)
    options = ["--engine", "colossalai", "--extra_launch_args", "tee=0,log_dir=logs"]
    done = ready.fleet(*two(ready, tmp_path), "launch", *options, "train.py", "$$", cwd=tmp_path, timeout=300)
    assert done.returncode == 9, done.stderr
    for path in tmp_path.glob("runs/*-*/*/rank*.out"):
        assert "3 3.0 ['$$']" in path.read_text()
    assert len(list(tmp_path.glob("runs/*-*/*/rank*.out"))) == 3
    summary, seconds = ended(tmp_path)
    first = summary["first_failure"]
    assert (first["host"], first["node_rank"], first["rank"]) == (ready.names[1], 1, 1) and seconds < 250


def test_an_engine_of_another_package(ready: VirtualLab, tmp_path: Path) -> None:
    """Installed beside fleet, on the head alone."""
    put(ready, quiet_py='import os; print(os.environ["RANK"], os.environ["WORLD_SIZE"])')
    env = {"PYTHONPATH": str(install(tmp_path / "site", "quietlaunch", ENGINE, quiet="Quiet"))}
    where = two(ready, tmp_path, standin_python())
    assert "|quiet]" in ready.fleet("launch", "--help", env=env).stdout
    done = ready.fleet(*where, "launch", "--engine", "quiet", "quiet.py", cwd=tmp_path, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.glob("runs/*-*")
    said = sorted(path.read_text() for path in run.glob("*/rank*.out"))
    assert said == [f"{rank} 3\n" for rank in range(3)]
    refused = ready.fleet(*where, "launch", "--engine", "quiet", "quiet.py", cwd=tmp_path)
    assert refused.returncode == 2 and "'quiet' is not one of" in refused.stderr
