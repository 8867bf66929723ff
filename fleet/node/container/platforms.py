"""Names the variables by which each platform describes a distributed run to its containers.

Each platform is a table. A process is on the first platform whose table fits: one of its `marks` is set, or all of its
`signs` are set, and in both cases none of its `unless`. No other program sets a mark. More precise tables come first.
If no table fits, the process is on the first platform with a `loose` variable that is set. Other programs set such
variables, too. A thing ("rank", "master") has the value of the first of its variables that is set. VARIABLE:READER
reads the thing out of a longer value, see variables.py. In a variable's name, {NAME} is replaced by the value of NAME,
and * matches any characters.

by: the program that sets the variables, except for those in `yours`, which the user sets. sure: how well the table is
known: "source" (from the platform's own code), "documented", "notes" (of a user, or of programs that run there), "seen"
(live, in the lab). origin: the file or page, and its date. RANK and WORLD_SIZE count nodes here, unless noted
otherwise. Below torchrun they count processes, but a process below torchrun is a rank already, and no container.
"""

from fleet.node.base.types import Any
from fleet.node.container.clouds import AZURE, CLOUDS, OTHERS
from fleet.node.container.schedulers import SCHEDULERS
from fleet.node.container.variables import MEETING

CHILD = ("LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE")  # launchers set these for the ranks that they start
# Things. "nodes", "least", "most": numbers of nodes; "rank": this node's rank; "each": ranks of a node; "master",
# "port": the address and port where nodes meet; "job": a name that no other run has.
# "alike": variables to compare: [VARIABLE, *things]: it must have the value of one of these things. There "world" is
# the number of all ranks, or of nodes if "each" is no number; "ranks" is the same number, or any multiple of the number
# of nodes; "zero" is 0, "one" is 1.
# "several": a variable that counts the processes of a node: more than one is a mistake; "rankless": a variable: if it
# is set, no rank is needed, as the node with the master's address leads; "unnamed": no job is needed, because no other
# job uses the meeting point; "led": the leading node gets no address; "own": variables out of CHILD that the platform
# itself sets; "ways": thing, "alike" or "several" -> the remedy for a user of the platform
AISTATION: "dict[str, Any]" = {
    "name": "aistation",
    "unless": ["JOB_COMPLETION_INDEX", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "FLUX_TASK_RANK", "PMI_RANK"],
    "nodes": ["NNODES"],
    "rank": ["RANK:where:WORLD_SIZE"],  # without WORLD_SIZE, RANK may be from the image, and equal in all containers
    **MEETING,
    "job": ["RDZV_ID"],
    "alike": [["WORLD_SIZE", "nodes", "ranks"]],
    "rankless": "NNODES",
    "ways": {"job": "one text for all containers, another for each run; or NODE_RANK in each"},
    "yours": ["NNODES", "NPROC_PER_NODE", "RDZV_ID"],
    "by": "AIStation",
    "sure": "notes",
    "origin": "notes of a user of AIStation: it sets MASTER_ADDR and MASTER_PORT, and may set RANK, WORLD_SIZE",
}
PLATFORMS: "list[dict[str, Any]]" = [
    *CLOUDS,
    {
        "name": "kubeflow",
        "marks": ["PET_NNODES", "PET_NODE_RANK"],
        "nodes": ["PET_NNODES"],
        "rank": ["PET_NODE_RANK", "RANK"],
        "each": ["PET_NPROC_PER_NODE", "PET_N_PROC_PER_NODE"],
        "master": ["PET_MASTER_ADDR", "PET_RDZV_ENDPOINT:host", "MASTER_ADDR"],
        "port": ["PET_MASTER_PORT", "PET_RDZV_ENDPOINT:port", "MASTER_PORT"],
        "job": ["PET_RDZV_ID"],
        # PyTorchJob's WORLD_SIZE: nodes up to 1.6, ranks since 1.7 (one per node if PET_NPROC_PER_NODE is no number)
        "alike": [
            ["WORLD_SIZE", "nodes", "world"],
            ["RANK", "rank"],
            ["MASTER_ADDR", "master"],
            ["MASTER_PORT", "port"],
        ],
        "rankless": "PET_RDZV_ENDPOINT",
        "unnamed": True,
        "by": "Kubeflow's operator",
        "sure": "source",
        "origin": "kubeflow/training-operator v1.9.0 (2025-01-21) pkg/controller.v1/pytorch/{envvar,elastic,master}.go "
        "and kubeflow/trainer pkg/runtime/framework/plugins/torch/torch.go at 8c0f505 (2026-08-21)",
    },
    {
        "name": "volcano",
        "signs": ["VC_TASK_INDEX", "MASTER_ADDR", "WORLD_SIZE"],
        "loose": ["VC_TASK_INDEX", "VC_*_HOSTS"],
        "nodes": ["WORLD_SIZE", "VC_*_HOSTS:items-count"],
        "rank": ["RANK", "VC_*_HOSTS:items-place"],
        "each": ["NPROC_PER_NODE"],
        "master": ["MASTER_ADDR", "VC_*_HOSTS:items-first"],
        "port": ["MASTER_PORT"],
        "ways": {
            "nodes": "its plugins pytorch and svc set them; or VC_WORKER_HOSTS=$(paste -sd, /etc/volcano/worker.host)",
            "rank": "--node-rank $VC_TASK_INDEX, where the job has one task; its svc plugin gives pods their names",
        },
        "yours": ["NPROC_PER_NODE"],
        "by": "Volcano",
        "sure": "source",
        "origin": "volcano-sh/volcano pkg/controllers/job/plugins/{env,svc,distributed-framework/pytorch} at ed72c7c "
        "(2026-08-20)",
    },
    {
        "name": "by-hand",
        "signs": ["NNODES", "NODE_RANK"],
        "nodes": ["NNODES"],
        "rank": ["NODE_RANK"],
        **MEETING,
        "alike": [["WORLD_SIZE", "nodes", "ranks"]],
        "yours": ["NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT"],
        "by": "the platform",
        "sure": "notes",
        "origin": "the names that LLaMA-Factory, swift and others read",
    },
    {
        "name": "aistation",
        "marks": ["MIN_NNODES", "MAX_NNODES"],
        "least": ["MIN_NNODES"],
        "most": ["MAX_NNODES"],
        "rank": AISTATION["rank"],
        **MEETING,
        "job": ["RDZV_ID"],
        "alike": [["NNODES", "nodes"]],
        "rankless": "MASTER_ADDR",
        "yours": ["MIN_NNODES", "MAX_NNODES", "NNODES", "NPROC_PER_NODE", "RDZV_ID"],
        "by": "AIStation",
        "sure": "notes",
        "origin": "notes of a user of AIStation: elastic",
    },
    dict(AISTATION, signs=["NNODES", "RDZV_ID"]),
    *AZURE,
    {
        "name": "pai-dlc",
        "signs": ["MASTER_ADDR", "WORLD_SIZE", "RANK", "NPROC_PER_NODE"],
        "nodes": ["WORLD_SIZE"],
        "rank": ["RANK"],
        **dict(MEETING, each=["NPROC_PER_NODE:gpus"]),
        "alike": [["NNODES:static", "nodes", "one"]],
        "yours": ["NNODES"],
        "by": "PAI-DLC",
        "sure": "documented",
        "origin": "alibabacloud.com/help/en/pai/user-guide/general-environment-variables (2026-04-01)",
    },
    {
        "name": "pytorchjob",
        "signs": ["MASTER_ADDR", "WORLD_SIZE", "RANK"],
        "nodes": ["WORLD_SIZE"],
        "rank": ["RANK"],
        **MEETING,
        "alike": [["NNODES:static", "nodes", "one"]],
        "yours": ["NNODES", "NPROC_PER_NODE"],
        "by": "Kubeflow's operator",
        "sure": "source",
        "origin": "kubeflow/training-operator v1.6.0 (2023-03-21) pkg/controller.v1/pytorch/envvar.go: no PET_NNODES",
    },
    *OTHERS,
    dict(AISTATION, signs=["NNODES"]),
    {
        "name": "indexed-job",
        "marks": ["JOB_COMPLETION_INDEX"],
        "nodes": ["NNODES"],
        "rank": ["JOB_COMPLETION_INDEX"],
        **MEETING,
        "yours": ["NNODES", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT"],
        "by": "Kubernetes",
        "sure": "documented",
        "origin": "kubernetes/enhancements KEP-2214; kubernetes-sigs/jobset at 08dfbdf (2026-08-18) adds none",
    },
    *SCHEDULERS,
]
# a variable that shows the platform -> (why fleet cannot read the place from it, the remedy)
OUT_OF_REACH = {
    "DET_ALLOCATION_ID": (
        "Determined gives its containers' addresses to its own launchers only",
        "--nnodes 2 --node-rank N --master-addr HOST, from det.get_cluster_info()",
    ),
    "RAY_NODE_TYPE_NAME": (
        "Ray starts nothing in its containers but its own workers",
        "a program of Ray's in each, with --nnodes 2 --node-rank N --master-addr HOST",
    ),
    "K_MPI_JOB_ROLE": (
        "the MPI Operator's containers run sshd: only what mpirun starts has variables",
        "in the launcher: mpirun --map-by ppr:1:node python3 fleet.pyz train.py",
    ),
}
