"""What each platform's variables come to: platforms/NAME.txt has what `fleet explain-env` prints for them.

The variables are those that the table's origin documents, with values of that shape; none was seen live here.
FLEET_GOLDEN=write writes what is printed now; read the difference before you commit it.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fleet.node.container import place
from fleet.node.container.explain import about, lines
from fleet.node.container.platforms import PLATFORMS

SHOWN = Path(__file__).with_name("platforms")
MEETING = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
KUBEFLOW = {"PET_NPROC_PER_NODE": "4", "PET_MASTER_ADDR": "job-master-0", "PET_MASTER_PORT": "23456", **MEETING}
CASES: dict[str, dict[str, str]] = {
    "aistation": {"NNODES": "4", "NPROC_PER_NODE": "8", "RDZV_ID": "job7", **MEETING},
    "aistation-elastic": {"MIN_NNODES": "2", "MAX_NNODES": "4", "NPROC_PER_NODE": "8", "RDZV_ID": "job7", **MEETING},
    "kubeflow": {"PET_NNODES": "2", "PET_NODE_RANK": "1", "WORLD_SIZE": "2", "RANK": "1", **KUBEFLOW},
    "kubeflow-elastic": {
        "PET_NNODES": "1:3",
        "PET_NPROC_PER_NODE": "4",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": "elastic",
        "PET_RDZV_ENDPOINT": "elastic-worker-0:23456",
        "PET_MAX_RESTARTS": "10",
    },
    "kubeflow-before-pet": {"WORLD_SIZE": "2", "RANK": "0", "PYTHONUNBUFFERED": "0", **MEETING},
    "volcano": {"VC_TASK_INDEX": "0", "VK_TASK_INDEX": "0", "WORLD_SIZE": "3", "RANK": "1", **MEETING},
    "pai-dlc": {"WORLD_SIZE": "2", "RANK": "1", "NPROC_PER_NODE": "8", **MEETING, "MASTER_ADDR": "dlc17-master-0"},
    "aihc": {"AIHC_JOB_NAME": "j", "WORLD_SIZE": "2", "RANK": "1", "NPROC_PER_NODE": "8", **MEETING},
    "modelarts": {
        "MA_NUM_HOSTS": "2",
        "VC_TASK_INDEX": "1",
        "MA_NUM_GPUS": "8",
        "MA_TASK_NAME": "worker",
        "VC_WORKER_HOSTS": "job-worker-0.job,job-worker-1.job",
    },
    "volcengine": {
        "MLP_WORKER_NUM": "2",
        "MLP_ROLE_INDEX": "1",
        "MLP_ROLE": "worker",
        "MLP_WORKER_GPU": "8",
        "MLP_WORKER_0_HOST": "10.1.0.4",
        "MLP_WORKER_0_PORT": "2222",
    },
    "indexed-job": {"JOB_COMPLETION_INDEX": "2", "NNODES": "3", "NPROC_PER_NODE": "1", **MEETING},
    "skypilot": {
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5",
        "SKYPILOT_NUM_GPUS_PER_NODE": "4",
        "SKYPILOT_TASK_ID": "sky-2026-11-27-10-00-00-000000_job_1",
    },
    "dstack": {
        "DSTACK_NODE_RANK": "0",
        "DSTACK_NODES_NUM": "2",
        "DSTACK_GPUS_PER_NODE": "8",
        "DSTACK_MASTER_NODE_IP": "10.0.0.1",
        "DSTACK_RUN_NAME": "train-distrib",
    },
    "sagemaker": {
        "SM_HOSTS": '["algo-1","algo-2"]',
        "SM_CURRENT_HOST": "algo-2",
        "SM_NUM_GPUS": "8",
        "TRAINING_JOB_NAME": "pytorch-2026",
    },
    "by-hand": {"NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "8", **MEETING},
    "openmpi": {
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        **MEETING,
    },
    "slurm-step": {
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_ID": "0",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "gpu[03,07]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_GPUS_ON_NODE": "8",
    },
    "pmi": {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "1", **MEETING},
    "lsf": {"LSB_MCPU_HOSTS": "grid05 8 grid03 8", "LSB_JOBID": "748"},
    "pbs": {"PBS_NODEFILE": "{folder}/nodes", "PBS_JOBID": "12.pbs"},
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_shown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "grid03")
    monkeypatch.setattr(place, "devices", lambda environ: None)
    (tmp_path / "nodes").write_text("grid01\ngrid01\ngrid03\ngrid03\n")
    environ = {key: value.replace("{folder}", str(tmp_path)) for key, value in CASES[name].items()}
    found = about(environ, {})
    shown = "\n".join(lines(found)) + "\n"
    file = SHOWN / f"{name}.txt"
    if os.environ.get("FLEET_GOLDEN") == "write":
        file.write_text(shown)
    assert shown == file.read_text() and not found["wrong"]


def test_every_table_has_its_case() -> None:
    assert {path.stem for path in SHOWN.iterdir()} == set(CASES)
    known = {"kubeflow-before-pet": "pytorchjob"}
    cases = {known.get(name, name.removesuffix("-elastic")) for name in CASES}
    assert {table["name"] for table in PLATFORMS} == cases
