"""The batch script that a run is submitted by."""

from __future__ import annotations

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
    assert {"#SBATCH --nodelist=n[1-2],n3", "#SBATCH --exclude=n9", "#SBATCH -H"} < set(found)
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
        ({"sbatch_arg": ("--comment=x",)}, "the run's id stands there"),
        ({"sbatch_arg": ("mail",)}, "no option"),
        ({"ntasks_per_node": "many"}, "not a number"),
        ({"partition": "a\n#SBATCH --uid=0"}, "cannot stand in a batch script"),
    ],
)
def test_what_cannot_stand_there(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        lines(options=options)


def test_no_value_ends_a_line() -> None:
    assert quoted("a#b c") == '"a#b c"' and quoted("gpu:8") == "gpu:8"
