"""The batch script that a run is submitted by."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import UsageError
from fleet.requests.submit import Submit
from fleet.sources.slurm.script import batch_script, quoted


def lines(**given: Any) -> list[str]:
    options = {
        "on": "slurm",
        "name": "train",
        "nodes": "4",
        "command": ["fleet", "--on", "slurm", "launch", "t.py"],
        **given,
    }
    return batch_script(Submit(**options)).splitlines()


def test_tasks_and_their_cpus_are_those_of_one_task() -> None:
    """`--ntasks-per-node=8 --cpus-per-task=8` are 64 CPUs a node."""
    found = lines(options={"ntasks_per_node": "8", "cpus_per_task": "8", "gres": "gpu:8", "exclusive": True})
    assert "#SBATCH --ntasks-per-node=1" in found and "#SBATCH --cpus-per-task=64" in found
    assert "#SBATCH --gres=gpu:8" in found and "#SBATCH --exclusive" in found
    found = lines(options={"ntasks_per_node": "8", "cpus_per_gpu": "4"})
    assert "#SBATCH --cpus-per-gpu=4" in found and not [line for line in found if "cpus-per-task" in line]
    assert "#SBATCH --cpus-per-task=8" in lines(options={"cpus_per_task": "8"})
    assert not [line for line in lines() if "cpus" in line]


def test_the_script_is_one_for_plain_sbatch(tmp_path: Path) -> None:
    found = lines(
        options={"constraint": 'a&b "c"', "sbatch_arg": ("--mail-type=END", "-H")},
        only="n[1-2],n3",
        grace=90.5,
        without="n9",
        command=["fleet", "launch", "t.py", "a b; rm"],
        made=["made by\nhand"],
    )
    assert found[0] == "#!/bin/bash" and found[-1] == "exec fleet launch t.py 'a b; rm'"
    assert {"#SBATCH --nodelist=n[1-2],n3", "#SBATCH --exclude=n9", "#SBATCH --hold"} < set(found)
    assert {"#SBATCH --mail-type=END", "#SBATCH --signal=TERM@121"} < set(found), "Slurm's KillWait is shorter"
    assert '#SBATCH --constraint="a&b \\"c\\""' in found and "# made by hand" in found
    assert [line for line in found if not line.startswith("#")] == [found[-1]], (
        "sbatch reads no option behind a command"
    )
    (tmp_path / "job.sh").write_text("\n".join(found))
    assert subprocess.run(["bash", "-n", tmp_path / "job.sh"], check=False).returncode == 0


@pytest.mark.parametrize(
    "options, word",
    [
        ({"sbatch_arg": ("--array=0-3",)}, "a run is one job, or"),
        ({"sbatch_arg": ("--arr=0-3",)}, "--sbatch-arg=--arr=0-3: a run is one job, or"),
        ({"sbatch_arg": ("-a0-1",)}, "--sbatch-arg=-a0-1: a run is one job, or"),
        ({"sbatch_arg": ("-Ha0-1",)}, "-Ha0-1: a run is one job, or"),
        ({"sbatch_arg": ("-D /tmp",)}, "a job begins in this folder"),
        ({"sbatch_arg": ("-H more",)}, "more is no option"),
        ({"environ": {"SBATCH_ARRAY_INX": "0-1"}}, "SBATCH_ARRAY_INX is set: a run is one job"),
        ({"sbatch_arg": ("mail",)}, "no option"),
        ({"ntasks_per_node": "many"}, "not a number"),
        ({"partition": "a\n#SBATCH --uid=0"}, "cannot be in a batch script"),
        ({"sbatch_arg": ("--later x\n#SBATCH --uid=0",)}, "cannot be in a batch script"),
    ],
)
def test_what_cannot_stand_there(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        lines(**options if "environ" in options else {"options": options})


@pytest.mark.parametrize("request_", [{"only": "n1:0,2"}, {"without": "n1:1", "nodes": "2"}, {"only": "n1,n2:0"}])
def test_slurm_chooses_devices(request_: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"^n1.*: Slurm chooses a node's devices") as refused:
        lines(**request_)
    assert "--gres" in str(refused.value.hint)


@pytest.mark.parametrize(("nodes", "stated"), [("", "3"), ("2", "2"), ("2-3", "2-3")])
def test_nodes_that_are_named_are_as_many_as_are_requested(nodes: str, stated: str) -> None:
    assert f"#SBATCH --nodes={stated}" in lines(only="n[1-2],n4", nodes=nodes)


def test_no_secret_stands_in_a_setup_line() -> None:
    """One that it reads from elsewhere is none of the script's."""
    with pytest.raises(UsageError, match=r"^--setup: WANDB_API_KEY=\*\*\*: a script must not hold a secret"):
        lines(options={"setup": ("export WANDB_API_KEY=abc123",)})
    for line in ("export WANDB_API_KEY=$(cat ~/.key)", 'export HF_TOKEN="$HF"', "module load cuda", "a=1; . env"):
        found = lines(options={"setup": (line,)}, run="t-20261130-120000-abcd")
        assert found.index(line) < len(found) - 1 and found[-1].startswith("FLEET_CLAIMS=t-20261130-120000-abcd exec ")


def test_no_value_ends_a_line() -> None:
    assert quoted("a#b c") == '"a#b c"' and quoted("gpu:8") == "gpu:8"


@pytest.mark.real
@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no Slurm")
def test_sbatch_reads_values_whole(tmp_path: Path) -> None:
    """It lists what it finds in a script before it looks for a cluster, which is not there."""
    (tmp_path / "slurm.conf").write_text("ClusterName=c\nSlurmctldHost=h(127.0.0.1)\nNodeName=n1\nMessageTimeout=2\n")
    values = {"comment": 'my "run" \\ # it\'s', "begin": "now + 1hour", "extra": "a=b, $c `d`"}
    (tmp_path / "job.sh").write_text(
        "\n".join(lines(options={"sbatch_arg": [f"--{it}={values[it]}" for it in values]}))
    )
    done = subprocess.run(
        ["sbatch", "-vvv", "--clusters=none", tmp_path / "job.sh"],
        env={**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")},
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    for name, value in values.items():
        assert f'Found in script, argument "--{name}={value}"' in done.stderr
