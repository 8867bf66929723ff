"""Environments that cannot be: each is caught before anything is started or waited for, with a message of its own."""

from __future__ import annotations

import os
import socket

import pytest

from fleet.node.base.errors import Refused
from fleet.node.container import main
from fleet.node.container.explain import about
from fleet.node.container.place import place_of
from fleet.node.container.variables import nodelist_first
from tests.clock import HandClock

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
    ({**GOOD, "RDZV_ID": ""}, "nothing distinguishes this run from others: RDZV_ID is not set"),
    ({**ELASTIC, "MIN_NNODES": "5"}, "5 nodes at least, and 4 at most"),
    ({**ELASTIC, "MAX_NNODES": "x"}, "MAX_NNODES=x: no number of nodes"),
    ({**ELASTIC, "NNODES": "3"}, "NNODES=3, but MAX_NNODES says 4"),
    ({**ELASTIC, "RDZV_ID": ""}, "nothing distinguishes this run from others"),
    ({**PET, "PET_NODE_RANK": "2"}, "PET_NODE_RANK=2, of 2 nodes: ranks of nodes begin with 0"),
    ({**PET, "RANK": "0"}, "RANK=0, but PET_NODE_RANK says 1"),
    ({**PET, "WORLD_SIZE": "16"}, "WORLD_SIZE=16, but PET_NNODES says 2; both are set by Kubeflow's operator"),
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
    ({"SM_HOSTS": "algo-1", "SM_CURRENT_HOST": "algo-1"}, "SM_HOSTS does not describe this container"),
    (
        {"SM_HOSTS": '["a","b"]', "SM_CURRENT_HOST": "c"},
        "SM_HOSTS with SM_CURRENT_HOST does not describe this container",
    ),
    ({"LSB_MCPU_HOSTS": "elsewhere 8 there 8", "LSB_JOBID": "1"}, "LSB_MCPU_HOSTS does not describe this container"),
    ({"PBS_NODEFILE": "/nowhere", "PBS_JOBID": "1"}, "PBS_NODEFILE does not describe this container"),
    ({"JOB_COMPLETION_INDEX": "1", **MEETING}, "nothing says how many nodes there are"),
    ({**GOOD, "WORLD_SIZE": "5"}, "WORLD_SIZE=5, but NNODES says 4; WORLD_SIZE is set by AIStation, NNODES by you"),
    ({**GOOD, "RANK": "8", "WORLD_SIZE": "32"}, "RANK=8, of 4 nodes"),
    ({**GOOD, "RDZV_ID": "x" * 256}, "RDZV_ID=" + "x" * 80 + "...: no name of a run"),
    ({"MIN_NNODES": "2", **MEETING, "RDZV_ID": "j"}, "MAX_NNODES is not set, but the other end is"),
    ({"DET_ALLOCATION_ID": "1.2"}, "Determined gives its containers' addresses to its own launchers only"),
    ({"RAY_NODE_TYPE_NAME": "worker"}, "Ray starts nothing in its containers but its own workers"),
    ({"K_MPI_JOB_ROLE": "worker"}, "the MPI Operator's containers run sshd"),
]


@pytest.mark.parametrize("environ, message", WRONG, ids=lambda it: it if isinstance(it, str) else "")
def test_what_cannot_be(environ: dict[str, str], message: str) -> None:
    try:
        wrong = about({**GPUS, **environ}, {})["wrong"]
    except Refused as error:
        wrong = [{"message": error.message, "hint": error.hint}]
    assert any(it["message"].startswith(message) for it in wrong), wrong
    assert all(it["hint"] for it in wrong) and len(wrong) <= 3


@pytest.mark.parametrize(
    "environ",
    [
        *(GOOD, ELASTIC, PET, SLURM),
        *({**PET, "WORLD_SIZE": world} for world in ("2", "8")),  # before 1.7, and since
        {**GOOD, "SLURM_STEP_ID": "", "RANK": "3", "WORLD_SIZE": "32"},
        {**SLURM, "NNODES": "2", "MASTER_ADDR": "a1"},  # a job's script has exported them
        {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SM_NUM_GPUS": "0", "CUDA_VISIBLE_DEVICES": ""},
        {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "m", "WORLD_SIZE": "16"},  # of 8 ranks, or of 1
        {"AZUREML_RUN_ID": "r", "MASTER_ADDR": "m", "NNODES": "1"},
    ],
)
def test_what_can_be(environ: dict[str, str]) -> None:
    assert about({**GPUS, **environ}, {})["wrong"] == []


@pytest.mark.parametrize(
    "master",
    ["m", "m-0.svc.cluster.local.", "10.0.0.1", "fe80::1", "fe80::1%eth0", "[fd00::1]", "::ffff:10.0.0.1", "a_b"],
)
def test_names_and_addresses(master: str) -> None:
    assert about({**GPUS, **GOOD, "MASTER_ADDR": master}, {})["wrong"] == []


def test_what_is_asked_for_stands_above_what_is_set() -> None:
    found = about({**GPUS, **PET}, {"node_rank": "0", "master_port": "1234"})
    assert (found["node_rank"], found["port"], found["from"]["rank"]) == (0, 1234, "--node-rank")
    found = about({**GPUS, **PET, "WORLD_SIZE": "99"}, {"nnodes": "3"})
    assert (found["platform"], found["nodes"]["most"], found["node_rank"], found["wrong"]) == ("kubeflow", 3, 1, [])
    found = about({}, {"nnodes": "2:3", "master_addr": "m", "rdzv_id": "j"})
    assert (found["nodes"], found["master"], found["wrong"]) == ({"least": 2, "most": 3}, "m", [])
    found = about({"VC_TASK_INDEX": "1"}, {"nnodes": "2", "master_addr": "m", "rdzv_id": "j"})
    assert (found["node_rank"], found["job"], found["wrong"]) == (None, "j", [])
    with pytest.raises(Refused, match="this is no kubeflow: PET_NNODES or PET_NODE_RANK is not set"):
        about({}, {}, "kubeflow")
    with pytest.raises(Refused, match="no platform 'moon' is known"):
        about(PET, {}, "moon")


@pytest.mark.parametrize(
    "environ",
    [
        {"JOB_COMPLETION_INDEX": "3"},
        {**SLURM, "SLURM_NODEID": "2", "SLURM_NNODES": "4", "SLURM_STEP_TASKS_PER_NODE": "8(x4)"},
        {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        {**PET, "WORLD_SIZE": "99", "MASTER_ADDR": "localhost"},
        {**GOOD, "NNODES": "four", "NODE_RANK": "3", "WORLD_SIZE": "99"},
    ],
)
def test_one_node_that_is_asked_for_is_alone(environ: dict[str, str]) -> None:
    """A sweep: each process that the platform starts is a run of its own."""
    found = about({**GPUS, **environ}, {"nnodes": "1"})
    assert (found["nodes"], found["node_rank"], found["master"]) == ({"least": 1, "most": 1}, None, None)
    assert found["wrong"] == [] and "--nnodes=1 " in found["by_hand"]["torchrun"]
    assert about({**GPUS, **environ}, {"nnodes": "1", "node_rank": "3"})["wrong"]


HAND = {"NNODES": "4", "NODE_RANK": "3", **MEETING}
SPEC = '{"cluster": {"pool0": ["a:2222"], "pool1": ["b:2222"]}, "task": {"type": "pool1", "index": 0}}'
LOOSE = [
    *({mark: "1"} for mark in ("VC_TASK_INDEX", "MA_TASK_NAME", "MA_NUM_GPUS", "AZUREML_RUN_ID")),
    {"LWS_LEADER_ADDRESS": "l", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"},
    {"INITIAL_CLUSTER_SIZE": "3", "JOB_RUN_OCID": "ocid1.x"},
    {"CLUSTER_SPEC": SPEC},
    {"AWS_BATCH_JOB_NUM_NODES": "3", "AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0"},
    {"PAI_CURRENT_TASK_ROLE_NAME": "w", "PAI_TASK_ROLE_TASK_COUNT_w": "2"},
]


# environ, the platform, the nodes, the node rank, and ranks
JOB = {"WORLD_SIZE": "2", "RANK": "1", **MEETING}
READ = [
    ({**JOB, "NNODES": "2"}, "pytorchjob", 2, 1, 8),
    ({**JOB, "NNODES": "1:2"}, "pytorchjob", 2, 1, 8),
    ({**JOB, "NNODES": "1"}, "pytorchjob", 2, 1, 8),
    ({**JOB, "NNODES": "2", "NPROC_PER_NODE": "4"}, "pai-dlc", 2, 1, 4),
    ({**JOB, "NNODES": "2", "NPROC_PER_NODE": "0"}, "pai-dlc", 2, 1, 1),
    ({**JOB, "AZUREML_RUN_ID": "r"}, "azureml", 2, 1, 8),
    ({**JOB, "AZUREML_RUN_ID": "r", "NODE_RANK": "1", "LOCAL_RANK": "0", "NNODES": "2"}, "azureml", 2, 1, 8),
    ({**GOOD, "RANK": "0"}, "aistation", 4, None, 8),  # the image's
    ({**ELASTIC, "RANK": "0"}, "aistation", 4, None, 8),
    ({**GOOD, "RANK": "3", "WORLD_SIZE": "32"}, "aistation", 4, 3, 8),
]


@pytest.mark.parametrize("environ, name, nodes, rank, ranks", READ)
def test_what_is_read(environ: dict[str, str], name: str, nodes: int, rank: int | None, ranks: int) -> None:
    found = about({**GPUS, **environ}, {})
    assert (found["platform"], found["wrong"]) == (name, [])
    assert (found["nodes"]["most"], found["node_rank"], found["ranks"]) == (nodes, rank, ranks)


def test_a_world_is_compared_with_ranks_that_are_known() -> None:
    pet = {**GPUS, **PET, "PET_NPROC_PER_NODE": "8", "WORLD_SIZE": "16"}
    assert about(pet, {})["wrong"] == [] == about(pet, {"nproc_per_node": "4"})["wrong"]
    assert len(about({**pet, "PET_NPROC_PER_NODE": "auto"}, {})["wrong"]) == 1  # Kubeflow counts one a node there
    hand = {**GPUS, "NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "m"}
    for more in ({"WORLD_SIZE": "3"}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "16", "NPROC_PER_NODE": "4"}):
        assert len(about({**hand, **more}, {})["wrong"]) == 1
    left_over = about({**GPUS, **JOB, "NNODES": "4"}, {})["wrong"]
    assert [it["message"].partition(";")[0] for it in left_over] == ["NNODES holds 4, but WORLD_SIZE says 2"]


@pytest.mark.parametrize("environ", LOOSE, ids=lambda environ: min(environ))
def test_what_a_user_sets_stands_above_what_may_stand_beside_it(environ: dict[str, str]) -> None:
    for mine, name, rank in ((HAND, "by-hand", 3), (GOOD, "aistation", None)):
        found = about({**GPUS, **environ, **mine}, {})
        assert (found["platform"], found["node_rank"], found["wrong"]) == (name, rank, [])
        assert (found["nodes"]["most"], found["master"], found["port"]) == (4, "m-0", 23456)


@pytest.mark.parametrize(
    "text, first",
    [
        *(("gpu[03-07,11],x", "gpu03"), ("a", "a"), ("a,b", "a"), ("r[1,2]n", "r1n"), ("", "")),
        *(("rack[1-2]n[03-04],x", "rack1n03"), ("a,b[1-2]", "a")),
    ],
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


# -- addresses of IPv6, and names that resolve late ----------------------------------------------------------
def test_an_ipv6_endpoint_keeps_its_port() -> None:
    elastic = {"PET_NNODES": "1:2", "PET_RDZV_ENDPOINT": "[fd00::1]:29400"}
    found = about(elastic, {})
    assert (found["master"], found["port"], found["wrong"]) == ("fd00::1", 29400, [])
    assert "--rdzv-endpoint=[fd00::1]:29400'" in found["by_hand"]["torchrun"]
    found = about({**elastic, "PET_RDZV_ENDPOINT": "fd00::1"}, {})
    assert (found["master"], found["port"]) == ("fd00::1", 29500)


@pytest.mark.parametrize(
    "late, answer, leads", [(3, "127.0.1.1", True), (3, "192.0.2.7", False), (0, "192.0.2.7", False)]
)
def test_a_name_that_resolves_late(late: int, answer: str, leads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one whose name it is leads, though it resolved only when others had asked for it."""
    clock, asked = HandClock(), list[str]()

    def resolve(name: str, *_: object) -> list[object]:
        asked.append(name)
        if clock.now < before + late:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answer, 0))]

    before = clock.now
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(main, "CLOCK", clock)
    place = place_of({**GOOD, "MASTER_ADDR": "m-0.svc"}, {})
    assert main.leads_by_name(place, 600) is leads and set(asked) == {"m-0.svc"}
    assert late <= clock.now - before < late + 1


def test_a_name_that_never_resolves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(main, "CLOCK", HandClock())
    place = place_of({**GOOD, "MASTER_ADDR": "no-such.invalid"}, {})
    with pytest.raises(Refused, match="within 5 s no-such.invalid does not resolve"):
        main.leads_by_name(place, 5)
    assert capsys.readouterr().err.count("waiting for no-such.invalid, where all meet") == 1
