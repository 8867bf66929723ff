"""`fleet launch` with the real torchrun and the real DeepSpeed: ranks as planned on uneven nodes, fail-fast."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.virtual_lab import VirtualLab
from tests.other_packages import ENGINE, install

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = """
import json, os, sys, time
names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
print(json.dumps([{k: int(os.environ[k]) for k in names}, sys.argv[1:]]), flush=True)
time.sleep(1)
if os.environ["RANK"] == "5":
    raise SystemExit(3)
time.sleep(600)
"""
DEEPSPEED = """
import os, sys, time
import deepspeed.ops
# spares a minute of C++ compiler for a reduction over shared memory
deepspeed.ops.__compatible_ops__.update(dict.fromkeys(deepspeed.ops.__compatible_ops__, False))
import zero1
zero1.main()
if os.environ["RANK"] == "4":
    raise SystemExit(7)
time.sleep(600)
"""


def uneven(lab: VirtualLab, folder: Path, slots: list[int]) -> Path:
    """An inventory of the lab's hosts with these slots."""
    lines = [f"  {h}: {{address: {lab.address(h)}, slots: {n}}}" for h, n in zip(lab.names, slots, strict=True)]
    path = folder / "fleet.yaml"
    defaults = f"defaults: {{user: root, python: {sys.executable}, workdir: ~/engines}}"
    path.write_text("\n".join([defaults, "hosts:", *lines]))
    return path


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


def test_torchrun(ready: VirtualLab, tmp_path: Path) -> None:
    put(ready, train_py=TORCHRUN)
    inventory = uneven(ready, tmp_path, [1, 2, 3, 2])
    args = ["--m", "1", "--l", "--r", "$$", "${local_rank}", "--", ""]
    done = ready.fleet("-i", str(inventory), "launch", "train.py", *args, cwd=tmp_path, timeout=280)
    assert done.returncode == 3, done.stderr
    said = {}
    for path in tmp_path.glob("runs/*/*/rank*.out"):
        env, argv = json.loads(path.read_text())
        assert argv == args
        said[env["RANK"]] = (path.parent.name, env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"], env["WORLD_SIZE"])
    planned = [(name, local, n, 8) for name, n in zip(ready.names, [1, 2, 3, 2], strict=True) for local in range(n)]
    assert said == dict(enumerate(planned))
    summary, seconds = ended(tmp_path)
    first = summary["first_failure"]
    assert (first["host"], first["node_rank"], first["rank"]) == (ready.names[2], 2, 5) and seconds < 5


def test_deepspeed(ready: VirtualLab, tmp_path: Path) -> None:
    files = {p.name.replace(".", "_"): p.read_text() for p in (EXAMPLES / "zero1.py", EXAMPLES / "zero1.json")}
    put(ready, train_py=DEEPSPEED, **files)
    inventory = uneven(ready, tmp_path, [1, 2, 1, 2])
    options = ["--engine", "deepspeed", "--env", "DS_ACCELERATOR=cpu"]
    script = ["train.py", "--deepspeed_config", "zero1.json", "--steps", "2"]
    done = ready.fleet("-i", str(inventory), "launch", *options, *script, cwd=tmp_path, timeout=280)
    assert done.returncode == 7, done.stderr
    for rank in range(6):
        (path,) = tmp_path.glob(f"runs/*/*/rank{rank}.out")
        assert f"rank {rank} of 6: ZeRO-1, 2 steps" in path.read_text()
    summary, seconds = ended(tmp_path)
    first = summary["first_failure"]
    assert (first["host"], first["node_rank"], first["rank"]) == (ready.names[3], 3, 4) and seconds < 5


def test_an_engine_of_another_package(ready: VirtualLab, tmp_path: Path) -> None:
    """Installed beside fleet, on the head alone."""
    put(ready, quiet_py='import os; print(os.environ["RANK"], os.environ["WORLD_SIZE"])')
    env = {"PYTHONPATH": str(install(tmp_path / "site", "quietlaunch", ENGINE, quiet="Quiet"))}
    where = ["-i", str(uneven(ready, tmp_path, [1, 2, 1, 1])), "-w", ",".join(ready.names[:2])]
    assert "|quiet]" in ready.fleet("launch", "--help", env=env).stdout
    done = ready.fleet(*where, "launch", "--engine", "quiet", "quiet.py", cwd=tmp_path, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.glob("runs/*-*")
    said = sorted(path.read_text() for path in run.glob("*/rank*.out"))
    assert said == [f"{rank} 3\n" for rank in range(3)]
    refused = ready.fleet(*where, "launch", "--engine", "quiet", "quiet.py", cwd=tmp_path)
    assert refused.returncode == 2 and "'quiet' is not one of" in refused.stderr
