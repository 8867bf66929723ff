"""A launch in an allocation of a real Slurm: the one that `make test` has. All others are in test_slurm.py."""

from __future__ import annotations

import pytest

from tests.lab.test_slurm import LAUNCH, PROGRAM, document, ranks, salloc
from tests.lab.virtual_lab import LabFactory, VirtualLab
from tests.node.nodes import until

ALLOCATION = "-N2 -n2 -c2 --gres=gpu:2"


@pytest.fixture(scope="module")
def slurm(lab_factory: LabFactory) -> VirtualLab:
    lab = lab_factory(2, "--slurm")
    for host in lab.names:
        lab.inside(host, "sh", "-c", "mkdir -p /root/job && cat >/root/job/t.py", stdin=PROGRAM.encode())
    until(lambda: lab.sh(lab.names[0], "sinfo -h -t idle -o %D") == "2")
    return lab


def test_a_launch_in_an_allocation(slurm: VirtualLab) -> None:
    code, said = salloc(slurm, f"{LAUNCH} t.py", ALLOCATION)
    assert code == 0, said
    cpus = int(slurm.sh(slurm.names[0], "scontrol show node -o $(hostname) | grep -o 'CPUTot=[0-9]*' | cut -d= -f2"))
    lines = [line.partition("] ")[2] for line in said.splitlines() if "] sum" in line]
    assert lines == [f"sum 4 {cpus} 0,1 []"] * 4, "all CPUs and GPUs of the allocation, and no task of Slurm's"
    summary = document(slurm, "summary.json")
    assert (summary["exit_code"], list(summary["hosts"]), ranks(slurm)) == (0, slurm.names, 0)
