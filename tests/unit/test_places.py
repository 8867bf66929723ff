"""Environments that cannot be: each is caught before anything is started or waited for, with a message of its own."""

from __future__ import annotations

import os

import pytest

from fleet.node.base.errors import Refused
from fleet.node.container.explain import about
from fleet.node.container.variables import nodelist_first

GPUS = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
MEETING = {"MASTER_ADDR": "m-0", "MASTER_PORT": "23456"}
GOOD = {"NNODES": "4", "NPROC_PER_NODE": "8", "RDZV_ID": "j", **MEETING}
ELASTIC = {"MIN_NNODES": "2", "MAX_NNODES": "4", "RDZV_ID": "j", **MEETING}
PET = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "4", **MEETING}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NNODES": "2",
    "SLURM_STEP_NODELIST": "a[1-2]",
    "SLURM_JOB_ID": "1",
}
WRONG = [
    ({}, "nothing in the environment says how many nodes there are"),
    ({"MASTER_ADDR": "m-0"}, "nothing in the environment says how many nodes there are"),
    ({**GOOD, "LOCAL_RANK": "0"}, "LOCAL_RANK is set: this is a process below a launcher already"),
    ({**GOOD, "GROUP_RANK": "1"}, "GROUP_RANK is set: this is a process below a launcher already"),
    ({**GOOD, "NNODES": "four"}, "NNODES=four: no number of nodes"),
    ({**GOOD, "NNODES": "0"}, "NNODES=0: no number of nodes"),
    ({**GOOD, "NNODES": "-1"}, "NNODES=-1: no number of nodes"),
    ({**GOOD, "NNODES": "99999999"}, "NNODES=99999999: no number of nodes"),
    ({**GOOD, "NNODES": "${NUM}"}, "NNODES=${NUM}: not expanded"),
    ({**GOOD, "MASTER_ADDR": "$(MASTER)"}, "MASTER_ADDR=$(MASTER): not expanded"),
    ({**GOOD, "MASTER_ADDR": ""}, "nothing says where 4 nodes meet"),
    ({**GOOD, "MASTER_ADDR": "m-0:29500"}, "MASTER_ADDR=m-0:29500: no host's name or address"),
    ({**GOOD, "MASTER_ADDR": "a" * 64}, "MASTER_ADDR=" + "a" * 64 + ": no host's name or address"),
    ({**GOOD, "MASTER_ADDR": "."}, "MASTER_ADDR=.: no host's name or address"),
    ({**GOOD, "MASTER_ADDR": "-v"}, "MASTER_ADDR=-v: no host's name or address"),
    ({**GOOD, "NNODES": "2:"}, "NNODES=2:: no number of nodes"),
    ({**GOOD, "NNODES": "1:2:3"}, "NNODES=1:2:3: no number of nodes"),
    ({**GOOD, "MASTER_ADDR": "tcp://m-0"}, "MASTER_ADDR=tcp://m-0: no host's name or address"),
    ({**GOOD, "MASTER_ADDR": "m-0; rm -rf /"}, "MASTER_ADDR=m-0; rm -rf /: no host's name or address"),
    ({**GOOD, "MASTER_ADDR": "127.0.0.1"}, "MASTER_ADDR=127.0.0.1 is each container itself"),
    ({**GOOD, "MASTER_ADDR": "localhost"}, "MASTER_ADDR=localhost is each container itself"),
    ({**GOOD, "MASTER_PORT": "70000"}, "MASTER_PORT=70000: no port"),
    ({**GOOD, "MASTER_PORT": "http"}, "MASTER_PORT=http: no port"),
    ({**GOOD, "NPROC_PER_NODE": "0"}, "NPROC_PER_NODE=0: no number of ranks"),
    ({**GOOD, "NPROC_PER_NODE": "8.0"}, "NPROC_PER_NODE=8.0: no number of ranks"),
    ({**GOOD, "NPROC_PER_NODE": "9"}, "NPROC_PER_NODE=9, and 8 devices here"),
    ({**GOOD, "RDZV_ID": ""}, "nothing tells this run from others: RDZV_ID is not set"),
    ({**ELASTIC, "MIN_NNODES": "5"}, "5 nodes at least, and 4 at most"),
    ({**ELASTIC, "MAX_NNODES": "x"}, "MAX_NNODES=x: no number of nodes"),
    ({**ELASTIC, "NNODES": "3"}, "NNODES=3, but MAX_NNODES says 4"),
    ({**ELASTIC, "RDZV_ID": ""}, "nothing tells this run from others"),
    ({**PET, "PET_NODE_RANK": "2"}, "PET_NODE_RANK=2, of 2 nodes: ranks of nodes begin with 0"),
    ({**PET, "RANK": "0"}, "RANK=0, but PET_NODE_RANK says 1"),
    ({**PET, "WORLD_SIZE": "8"}, "WORLD_SIZE=8, but PET_NNODES says 2"),
    ({**PET, "PET_MASTER_ADDR": "other"}, "MASTER_ADDR=m-0, but PET_MASTER_ADDR says other"),
    ({**PET, "PET_NODE_RANK": ""}, "nothing says which of 2 nodes this is"),
    ({**PET, "PET_NPROC_PER_NODE": "many"}, "PET_NPROC_PER_NODE=many: no number of ranks"),
    ({"WORLD_SIZE": "2", "RANK": "2", **MEETING}, "RANK=2, of 2 nodes"),
    ({"WORLD_SIZE": "2", "RANK": "x", **MEETING}, "RANK=x: no node rank"),
    (
        {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "8(x2)"},
        "SLURM_STEP_TASKS_PER_NODE=8 processes were started on this node",
    ),
    (
        {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", **MEETING},
        "OMPI_COMM_WORLD_LOCAL_SIZE=4 processes were started on this node",
    ),
    ({"SM_HOSTS": "algo-1", "SM_CURRENT_HOST": "algo-1"}, "SM_HOSTS says nothing of this container"),
    ({"SM_HOSTS": '["a","b"]', "SM_CURRENT_HOST": "c"}, "SM_HOSTS says nothing of this container"),
    ({"LSB_MCPU_HOSTS": "elsewhere 8 there 8", "LSB_JOBID": "1"}, "LSB_MCPU_HOSTS says nothing of this container"),
    ({"PBS_NODEFILE": "/nowhere", "PBS_JOBID": "1"}, "PBS_NODEFILE says nothing of this container"),
    ({"JOB_COMPLETION_INDEX": "1", **MEETING}, "nothing says how many nodes there are"),
]


@pytest.mark.parametrize("environ, message", WRONG, ids=lambda it: it if isinstance(it, str) else "")
def test_what_cannot_be(environ: dict[str, str], message: str) -> None:
    try:
        wrong = about({**GPUS, **environ}, {})["wrong"]
    except Refused as error:
        wrong = [{"message": error.message, "hint": error.hint}]
    assert any(it["message"].startswith(message) for it in wrong), wrong
    assert all(it["hint"] for it in wrong) and len(wrong) <= 3


@pytest.mark.parametrize("environ", [GOOD, ELASTIC, PET, SLURM])
def test_what_can_be(environ: dict[str, str]) -> None:
    assert about({**GPUS, **environ}, {})["wrong"] == []


@pytest.mark.parametrize("master", ["m", "m-0.svc.cluster.local.", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1", "a_b"])
def test_names_and_addresses(master: str) -> None:
    assert about({**GPUS, **GOOD, "MASTER_ADDR": master}, {})["wrong"] == []


def test_what_is_asked_for_stands_above_what_is_set() -> None:
    found = about({**GPUS, **PET}, {"node_rank": "0", "master_port": "1234"})
    assert (found["node_rank"], found["port"], found["from"]["rank"]) == (0, 1234, "--node-rank")
    found = about({}, {"nnodes": "2:3", "master_addr": "m", "rdzv_id": "j"})
    assert (found["nodes"], found["master"], found["wrong"]) == ({"least": 2, "most": 3}, "m", [])
    with pytest.raises(Refused, match="this is no kubeflow: PET_NNODES is not set"):
        about({}, {}, "kubeflow")
    with pytest.raises(Refused, match="no platform 'moon' is known"):
        about(PET, {}, "moon")


@pytest.mark.parametrize(
    "text, first", [("gpu[03-07,11],x", "gpu03"), ("a", "a"), ("a,b", "a"), ("r[1,2]n", "r1n"), ("", "")]
)
def test_the_first_of_a_node_list(text: str, first: str) -> None:
    assert nodelist_first(text) == first


def test_devices_that_processes_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def ranks(**environ: str) -> object:
        """A rank for each."""
        found = about({**GOOD, "NPROC_PER_NODE": "gpu", **environ}, {})
        return found["ranks"] if not found["wrong"] else found["wrong"][0]["message"]

    assert ranks(CUDA_VISIBLE_DEVICES="0,3") == 2
    assert ranks(CUDA_VISIBLE_DEVICES="-1") == "a rank for each GPU, and there is none here"
    monkeypatch.setattr(os, "listdir", lambda path: ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"])
    assert ranks() == 2
