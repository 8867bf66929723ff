"""A Slurm allocation as hosts: what its variables and scontrol say of it (recorded from 22.05.8 in the lab)."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

import fleet as fleets
from fleet.cli import main as cli
from fleet.cli.main import run
from fleet.errors import UsageError
from fleet.slurmconf import SlurmNode, gres_conf, node_of, slurm_conf
from fleet.sources.slurm.allocation import addresses, counts, gpus, hosts
from fleet.sources.slurm.cluster import nodes
from fleet.sources.slurm.source import Slurm
from fleet.sources.source import Condition
from fleet.transport.slurm import epoch, fields, own_environment
from fleet.transport.srun import OF_TASKS

JOB = """\
JobId=4 JobName=interactive
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   NodeList=zz[01-03]
   NumNodes=3 NumCPUs=6 NumTasks=3 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   TRES=cpu=6,mem=12000M,node=3,billing=6
   JOB_GRES=gpu:6
     Nodes=zz[01-02] CPU_IDs=0-1 Mem=4000 GRES=gpu:2(IDX:0-1)
     Nodes=zz03 CPU_IDs=0 Mem=4000 GRES=gpu:a100:1(IDX:1),gpu:t4:3(IDX:2-4)
   MinCPUsNode=2 MinMemoryNode=0 MinTmpDiskNode=0
   TresPerNode=gres:gpu:2
"""
NODES = """\
NodeName=zz01 Arch=x86_64 CoresPerSocket=1 NodeAddr=127.0.0.1 NodeHostName=zz01 Version=22.05.8 RealMemory=4000
NodeName=zz02 Arch=x86_64 CoresPerSocket=1 NodeAddr=127.0.0.2 NodeHostName=zz02 Version=22.05.8 RealMemory=4000
"""
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


def test_gpus_and_addresses_of_nodes() -> None:
    assert gpus(JOB) == {"zz01": 2, "zz02": 2, "zz03": 4}
    assert dict(addresses(NODES)) == {"zz01": "127.0.0.1", "zz02": "127.0.0.2"}
    assert gpus("") == {} and dict(addresses("slurm_load_node error")) == {}


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


def test_srun_and_ranks_get_no_options_of_a_step() -> None:
    step = "SLURM_NTASKS SLURM_PROCID SLURM_STEP_ID SLURM_STEPID SLURM_TASK_PID SLURM_CPU_BIND SRUN_DEBUG PMI_RANK"
    job = "SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_CONF SLURM_SUBMIT_DIR SLURM_GPUS_ON_NODE CUDA_VISIBLE_DEVICES"
    environ = dict.fromkeys([*step.split(), *job.split(), "PATH", "SBATCH_ACCOUNT", "SLURM_EXPORT_ENV"], "x")
    assert sorted(own_environment(environ)) == ["CUDA_VISIBLE_DEVICES", "PATH", "SLURM_CONF"]
    assert all(re.fullmatch(OF_TASKS, name) for name in step.split())
    assert not any(re.fullmatch(OF_TASKS, name) for name in job.split())


def test_where_no_inventory_is_the_allocation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("SLURM", "FLEET"))]:
        monkeypatch.delenv(name)
    assert Slurm().detect(os.environ) is None
    assert cli.run(["exec", "--", "true"]) == 121
    assert "this is" not in capsys.readouterr().err
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    assert cli.run(["exec", "--", "true"]) == 121
    said = capsys.readouterr().err
    assert "no inventory found; this is job 4 of Slurm" in said and "give --on slurm to take its hosts" in said


def test_by_the_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """scontrol is asked without a shell, and need not be there."""
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ncase $2 in job) cat <<'END'\n{JOB}END\n;; node) cat <<'END'\n{NODES}END\nesac\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    gpus = fleets.open(on="slurm")
    assert (gpus.names, gpus.transport, gpus.inventory.source) == (("zz01", "zz02", "zz03"), "srun", "slurm:4")
    assert gpus.inventory.hosts[2].slots == 4
    program.unlink()
    assert fleets.open(on="slurm").inventory.hosts[2].slots == 4, "its tasks"
    with pytest.raises(UsageError, match="takes no inventory"):
        fleets.open("x.yaml", on="slurm")
    with pytest.raises(UsageError, match="no source 'moon'"):
        fleets.open(on="moon")


def test_a_node_of_a_hosts_facts() -> None:
    facts = {"memory": {"total": 100 << 30}, "cpu": {"count": 64}, "gpus": [{"index": 0}, {"index": 1}]}
    assert node_of("a1", "10.0.0.1", facts) == SlurmNode("a1", 64, 100352, ("/dev/nvidia0", "/dev/nvidia1"), "10.0.0.1")
    assert node_of("a1", "a1", {}) == SlurmNode("a1", 1, 1)
    named = node_of("a1", "10.0.0.1", {"hostname": "node7.lan"})
    text = slurm_conf([named], cluster="c", partition="p")
    assert "SlurmctldHost=node7(10.0.0.1)\n" in text and "NodeName=a1 NodeHostname=node7 NodeAddr=10.0.0.1 " in text
    assert node_of("a1", "a1", {"hostname": "x\nSlurmUser=root"}).hostname is None


SINFO = """\
n01|10.0.0.1|gpu:a100:8(S:0-1)|idle|none
n02|n02|gpu:a100:4,gpu:t4:2|drained*|ECC errors | see #7
n03|n03|(null)|mixed|none
n01|10.0.0.1|gpu:a100:8(S:0-1)|idle|none
"""


def test_the_nodes_of_a_cluster() -> None:
    found = nodes(SINFO)
    assert [(host.name, host.address, host.slots) for host, _ in found.values()] == [
        ("n01", "10.0.0.1", 8),
        ("n02", "n02", 6),
        ("n03", "n03", None),
    ]
    assert found["n02"][1] == Condition("drained*", "ECC errors | see #7") and found["n01"][1] == Condition("idle")


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


def test_hosts_from_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    sinfo = tmp_path / "sinfo"
    sinfo.write_text(f"#!/bin/sh\ncase $* in *partition=none*) ;; *%R*) echo gpu1;; *) cat <<'END'\n{SINFO}END\nesac\n")
    sinfo.chmod(0o755)
    assert run(["hosts", "--from", "slurm"]) == 0
    shown = capfd.readouterr().out
    assert re.search(r"n02 +\S* *6 +drained\* +ECC errors \| see #7", shown), shown
    assert run(["hosts", "--from", "slurm", "gpu1", "-x", "n03", "--format", "slurm"]) == 0
    lines = ["NodeName=n01 NodeAddr=10.0.0.1 Gres=gpu:8 State=UNKNOWN", "NodeName=n02 Gres=gpu:6 State=UNKNOWN"]
    assert capfd.readouterr().out.splitlines() == lines
    assert run(["--json", "hosts", "--from", "slurm"]) == 0
    assert json.loads(capfd.readouterr().out)["hosts"]["n02"]["state"] == "drained*"
    assert run(["hosts", "--from", "slurm", "none"]) == 2
    assert "partitions there are: gpu1" in capfd.readouterr().err


def test_files_of_slurms() -> None:
    nodes = [SlurmNode("a1", 8, 64000, ("/dev/nvidia0", "/dev/nvidia1"), "10.0.0.1"), SlurmNode("a2", 4, 32000)]
    text = slurm_conf(nodes, cluster="c", partition="gpu")
    assert "SlurmctldHost=a1(10.0.0.1)\n" in text and "SlurmUser=slurm\n" in text
    assert "NodeName=a1 NodeAddr=10.0.0.1 CPUs=8 RealMemory=64000 Gres=gpu:2 State=UNKNOWN\n" in text
    assert "NodeName=a2 CPUs=4 RealMemory=32000 State=UNKNOWN\n" in text
    assert text.endswith("PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
    assert gres_conf(nodes).splitlines()[1:] == [
        "NodeName=a1 Name=gpu File=/dev/nvidia0",
        "NodeName=a1 Name=gpu File=/dev/nvidia1",
    ]
