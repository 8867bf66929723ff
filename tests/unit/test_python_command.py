"""What is a Python script, and what to write where it is none."""

from __future__ import annotations

import pytest

from fleet.engines.base import python_command
from fleet.errors import UsageError
from fleet.model import Job
from tests.command_lines import accept


@pytest.mark.parametrize(
    ("script", "args", "engine", "hint"),
    [
        ("sft.sh", ("--lr", "1"), "torchrun", "fleet launch --engine command ./sft.sh --lr 1"),
        ("bin/sft.sh", (), "deepspeed", "fleet launch --engine command bin/sft.sh"),
        ("bash", ("run.sh",), "torchrun", "fleet launch --engine command bash run.sh"),
        ("python", ("train.py", "--lr", "1 2"), "torchrun", "fleet launch train.py --lr '1 2'"),
        ("/opt/bin/python3.11", ("-u", "train.py"), "torchrun", "fleet launch --python /opt/bin/python3.11 train.py"),
        ("python", ("-m", "pkg.train"), "torchrun", "fleet launch -m pkg.train"),
        (
            "torchrun",
            ("--nnodes", "2", "--nproc_per_node=8", "train.py", "-n", "3"),
            "torchrun",
            "fleet launch --nnodes 2 --nproc-per-node 8 train.py -n 3",
        ),
        (
            "deepspeed",
            ("--num_gpus", "4", "train.py"),
            "torchrun",
            "fleet launch --engine deepspeed --nproc-per-node 4 train.py",
        ),
        ("accelerate", ("launch", "train.py"), "torchrun", "fleet launch --engine accelerate train.py"),
        ("mpirun", ("-np", "8", "./train"), "torchrun", "fleet launch --engine command --num-processes 8 ./train"),
    ],
)
def test_what_python_cannot_start_is_told_what_to_write(
    script: str, args: tuple[str, ...], engine: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        python_command(Job(script, args, engine), "python3")
    assert caught.value.hint == hint
    accept(hint)


def test_a_python_script_is_what_it_says() -> None:
    for script in ("train.py", "train", "python.py", "a.sh.py"):
        assert python_command(Job(script), "p")[2] == script
    assert python_command(Job("-t.py"), "p")[2] == "./-t.py", "no option of Python's"
