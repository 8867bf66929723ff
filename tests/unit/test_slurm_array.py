"""The tasks of an array of single-node jobs: the nodes of one run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fleet.errors import ConnectError, DeadlineError, HostFailed, UsageError
from fleet.sources.slurm import array
from fleet.transport.slurm import jobs_of
from tests import stubs
from tests.run_folders import an_id


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return stubs.put(tmp_path, {"squeue": "exit 1"}, monkeypatch)


ARRAY = """#!/bin/sh
cat <<END
17_0|18|lab01|RUNNING|None
17_2|17|lab03|RUNNING|None
17_1|19||PENDING|Priority | of others
END
"""


def test_the_tasks_of_an_array_are_the_nodes_of_a_run(programs: Path) -> None:
    """In the order of their numbers: the last one has the array's own."""
    (programs / "squeue").write_text(ARRAY)
    tasks = array.tasks_of("17")
    assert [(it.number, it.job, it.node, it.state) for it in tasks] == [
        (0, "18", "lab01", "RUNNING"),
        (1, "19", "", "PENDING"),
        (2, "17", "lab03", "RUNNING"),
    ]
    found = array.entered([it for it in tasks if it.state == "RUNNING"])
    assert jobs_of(found) == {"lab01": "18", "lab03": "17"} and found["SLURM_JOB_ID"] == "18"
    with pytest.raises(UsageError, match="jobs 17_0, 17_2 are all on lab03"):
        array.check_alone([it._replace(node="lab03") for it in tasks if it.state == "RUNNING"])


def test_all_jobs_that_lead_a_run(programs: Path) -> None:
    lines = [f"17|17|lab[01-02]|RUNNING|/runs/{an_id('t')}/job.sh", f"19_0|20|lab02|RUNNING|/runs/{an_id('u')}/job.sh"]
    lines.append("21|21|lab04|RUNNING|/home/me/job.sh")
    (programs / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    found = array.entered(array.of_user())
    assert found["SLURM_JOB_NODELIST"] == "lab01,lab02" and list(jobs_of(found)) == ["lab01", "lab02"]
    (programs / "squeue").write_text("#!/bin/sh\n")
    with pytest.raises(UsageError, match="no job of yours leads a run now"):
        array.entered(array.of_user())


def test_a_task_holds_its_node_while_a_step_runs_there(tmp_path: Path) -> None:
    """Also where its node has no scontrol, and for longer than the tasks wait for each other."""
    bash, number = "/bin/bash", 900_000_000 + os.getpid()
    for name in ("grep", "sleep", "awk"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    step = subprocess.Popen([bash, "-c", f"exec -a 'slurmstepd: [{number}.0]' sleep 60"])
    env = {"PATH": str(tmp_path), "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": str(number), array.WAIT: "1"}
    task = subprocess.Popen([bash, "-c", array.HOLD], env=env)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            task.wait(6)
    finally:
        step.kill()
        task.kill()
        step.wait()
        task.wait()
    env["SLURM_JOB_ID"] = str(number + 1)
    subprocess.run([bash, "-c", array.HOLD], env=env, check=False, timeout=60)  # of one where no step comes it lets go


def test_an_array_that_never_is_whole_is_let_go(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_ID": "0", array.WAIT: "1"}
    (programs / "squeue").write_text(ARRAY)
    stubs.put(programs, {"scancel": f"echo $* >> {programs}/cancelled"}, monkeypatch)
    with pytest.raises(DeadlineError, match=r"within 1 s 2 of 3 nodes are there.*17_1 PENDING, Priority . of others"):
        array.gathered(environ)
    (programs / "squeue").write_text(ARRAY.replace("PENDING", "CANCELLED"))
    with pytest.raises(HostFailed, match="17_1 CANCELLED"):
        array.gathered({**environ, array.WAIT: "900"})
    assert (programs / "cancelled").read_text() == "17_[1-2]\n" * 2
    for silent in ("Unable to contact slurm controller (connect failure)", "Socket timed out"):
        (programs / "squeue").write_text(f"#!/bin/sh\necho 'slurm_load_jobs error: {silent}' >&2; exit 1\n")
        with pytest.raises(ConnectError, match="Slurm did not answer within 1 s: squeue: .*" + silent[:6]):
            array.gathered(environ)
    assert (programs / "cancelled").read_text() == "17_[1-2]\n" * 2, "nothing is cancelled unseen"
    monkeypatch.setattr(array, "SOON_SECONDS", 0.1)
    monkeypatch.setattr(array, "PAUSE_SECONDS", 0.1)
    refusal = "echo 'slurm_load_jobs error: Protocol authentication error' >&2; exit 1"
    (programs / "squeue").write_text(f"#!/bin/sh\n[ -e $0.again ] || {{ touch $0.again; {refusal}; }}\n")
    with (programs / "squeue").open("a") as file:
        file.write(ARRAY.replace("PENDING", "RUNNING").replace("||", "|lab02|"))
    assert list(jobs_of(array.gathered({**environ, array.WAIT: "60"}))) == ["lab01", "lab02", "lab03"]
    assert (programs / "cancelled").read_text() == "17_[1-2]\n" * 2, "munge may answer the next time"
    (programs / "squeue").write_text(f"#!/bin/sh\n{refusal}\n")
    with pytest.raises(UsageError, match="squeue: .*Protocol authentication error"):
        array.gathered({**environ, array.WAIT: "60"})
    assert (programs / "cancelled").read_text() == "17_[1-2]\n" * 3
    with pytest.raises(UsageError, match="task 0 of an array leads"):
        array.gathered({**environ, "SLURM_ARRAY_TASK_ID": "1"})
