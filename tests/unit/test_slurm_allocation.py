"""A Slurm allocation as hosts: what its variables and scontrol say of it (recorded from 22.05.8 in the lab)."""

from __future__ import annotations

import re

import pytest

from fleet.errors import UsageError
from fleet.sources.slurm.allocation import addresses, counts, gpus, hosts
from fleet.transport.slurm import route_to
from tests.slurm_answers import JOB, NODES

ENV = {"SLURM_JOB_ID": "4", "SLURM_JOB_NODELIST": "zz[01-03]", "SLURM_TASKS_PER_NODE": "8(x2),4"}


@pytest.mark.parametrize(
    ("text", "numbers"), [("4(x4)", [4] * 4), ("2(x3),1", [2, 2, 2, 1]), ("8", [8]), ("72(x1),8", [72, 8])]
)
def test_counts_of_nodes(text: str, numbers: list[int]) -> None:
    assert counts(text) == numbers


@pytest.mark.parametrize("text", ["", "8x2", "8(x2", "-1", "8(x99999999)", "8(x2),", "８"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="no count a node"):
        counts(text)


def test_counts_are_bounded_in_their_sum() -> None:
    """Each part alone is no larger than it may be."""
    many = ",".join(["1(x65536)"] * 2000)
    with pytest.raises(UsageError, match="it counts more than 65536 nodes"):
        hosts({**ENV, "SLURM_TASKS_PER_NODE": many})
    assert len(counts("1(x65535),1")) == 1 << 16


def test_gpus_and_addresses_of_nodes() -> None:
    assert gpus(JOB) == {"zz01": 2, "zz02": 2, "zz03": 4}
    assert dict(addresses(NODES)) == {"zz01": "127.0.0.1", "zz02": "127.0.0.2"}
    assert gpus("") == {} and dict(addresses("slurm_load_node error")) == {}


def test_a_node_whose_own_name_is_a_loopback_has_the_address_of_its_route() -> None:
    """As Debian's installer has it in /etc/hosts: ranks of others could not meet there."""
    env = {"SLURM_JOB_ID": "4", "SLURM_JOB_NODELIST": "zz[01-02]", "SLURM_GPUS_ON_NODE": "2"}
    nodes = "NodeName=zz01 NodeAddr=127.0.1.1 x\nNodeName=zz02 NodeAddr=198.51.100.7 x\n"
    assert [it.address for it in hosts(env, "", nodes)] == [route_to("198.51.100.7") or "127.0.1.1", "198.51.100.7"]


def test_hosts_of_an_allocation() -> None:
    found = hosts(ENV, JOB, NODES)
    assert [(host.name, host.address, host.slots) for host in found] == [
        ("zz01", "127.0.0.1", 2),
        ("zz02", "127.0.0.2", 2),
        ("zz03", "zz03", 4),
    ]
    assert [host.slots for host in hosts(ENV)] == [8, 8, 4], "without GPUs they are its tasks"
    assert [host.slots for host in hosts({**ENV, "SLURM_TASKS_PER_NODE": "8"})] == [1, 1, 1], "those of another step"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"SLURM_JOB_ID": ""}, "no allocation of Slurm's"),
        ({"SLURM_JOB_ID": "4;id"}, "no allocation of Slurm's"),
        ({"SLURM_JOB_NODELIST": ""}, "has no nodes"),
        ({"SLURM_JOB_NODELIST": "zz[01-"}, "job 4: "),
        ({"SLURM_JOB_NODELIST": "$(id)"}, "job 4: "),
        ({"SLURM_TASKS_PER_NODE": "many"}, "no count a node"),
        ({"SLURM_HET_SIZE": "2"}, "heterogeneous one, of 2 parts"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        hosts({**ENV, **change})


@pytest.mark.parametrize(
    ("gres", "number"),
    [
        ("gpu:2(IDX:0-1)", 2),
        ("gpu:a100_3g.20gb:1(IDX:3)", 1),  # neilmunday/slurm-mail#142
        ("gpu:1080ti:1(IDX:0),gpu:980gtx:1(IDX:1)", 2),  # Bartzi/LabShare#114
        ("gpu:titanx:0(IDX:N/A)", 0),
        ("gpu:8(IDX:0-7),shard:2(IDX:0)", 8),
        ("", 0),  # a job of inti, 2023-05
    ],
)
def test_gpus_of_a_job_as_sites_have_them(gres: str, number: int) -> None:
    assert gpus(f"   JOB_GRES=(null)\n     Nodes=a1 CPU_IDs=0-15 Mem=15000 GRES={gres}\n") == {"a1": number}
