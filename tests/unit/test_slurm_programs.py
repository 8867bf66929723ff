"""What programs of Slurm's print, and the variables that they get of ours."""

from __future__ import annotations

import re

import pytest

from fleet.transport.slurm import epoch, fields, own_environment
from fleet.transport.step import OF_TASKS


def test_srun_and_ranks_get_no_options_of_a_step() -> None:
    step = "SLURM_NTASKS SLURM_PROCID SLURM_STEP_ID SLURM_STEPID SLURM_TASK_PID SLURM_CPU_BIND SRUN_DEBUG PMI_RANK"
    job = "SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_CONF SLURM_SUBMIT_DIR SLURM_GPUS_ON_NODE CUDA_VISIBLE_DEVICES"
    environ = dict.fromkeys([*step.split(), *job.split(), "PATH", "SBATCH_ACCOUNT", "SLURM_EXPORT_ENV"], "x")
    assert sorted(own_environment(environ)) == ["CUDA_VISIBLE_DEVICES", "PATH", "SLURM_CONF"]
    assert all(re.fullmatch(OF_TASKS, name) for name in step.split())
    assert not any(re.fullmatch(OF_TASKS, name) for name in job.split())


# `scontrol show job -o`, shortened: what each version has that the ones before had not. Only the first was run here.
RECORDED = {
    "22.05.8, the lab": "JobId=7 JobName=t JobState=RUNNING Reason=None Requeue=1 Restarts=0 EndTime=Unknown "
    "PreemptEligibleTime=2026-11-27T10:00:00 PreemptTime=None NodeList=a[1-2] TRES=cpu=6,mem=12000M Comment=fleet:RUN",
    "24.11, docs of SlinkyProject/slurm-bridge": "JobId=7 JobName=t JobState=RUNNING Reason=None Requeue=1 Restarts=0 "
    "EndTime=Unknown PreemptTime=None NodeList=a[1-2] BatchHost=a1 StepMgrEnabled=Yes ReqTRES=cpu=1 AllocTRES=cpu=4 "
    'Licenses=(null) LicensesAlloc=(null) Command=(null) Comment=fleet:RUN AdminComment={"pods":["x/y"]} OOMKillStep=0',
    "25.05, a guide of 2025-09": "JobId=7 JobName=t JobState=RUNNING Reason=None Requeue=1 Restarts=0 EndTime=Unknown "
    "NodeList=a[1-2] AllocTRES=cpu=8,mem=10G,node=1,billing=8 LicensesAlloc=(null) TresPerNode=gres/gpu:nvidia_l40s:1 "
    "TresPerTask=cpu=8 Comment=fleet:RUN",
    "25.11, tests of an Airflow provider": "JobId=7 JobName=t JobState=RUNNING Reason=None Requeue=1 Restarts=0 "
    "EndTime=Unknown NodeList=a[1-2] OverSubscribe=NO Exclusive=NO LicensesAlloc=(null) SubmitLine=sbatch "
    "-n1 --wrap JobState=FAILED NodeList=x WorkDir=/u/mer StdErr= StdIn=/dev/null Comment=fleet:RUN",
}


@pytest.mark.parametrize("version", RECORDED)
def test_a_job_as_each_version_shows_it(version: str) -> None:
    shown = fields(RECORDED[version])
    said = {name: shown[name] for name in ("JobId", "JobState", "Reason", "Restarts", "NodeList", "Comment")}
    assert list(said.values()) == ["7", "RUNNING", "None", "0", "a[1-2]", "fleet:RUN"]
    assert shown.get("PreemptTime", "None") == "None" and epoch(shown["EndTime"]) is None
