"""The batch script that a run is submitted by, and what Slurm's queue says of its job."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleet.engines.env_file import env_file, read_env_file
from fleet.errors import DeadlineError, HostFailed, UsageError
from fleet.requests.submit import Submit
from fleet.sources.queue import Standing, State
from fleet.sources.slurm import array
from fleet.sources.slurm.queue import SlurmQueue, hint, standing
from fleet.sources.slurm.script import batch_script, quoted
from fleet.sources.slurm.source import Slurm
from fleet.transport.slurm import jobs_of


def lines(**given: Any) -> list[str]:
    options = {
        "on": "slurm",
        "name": "train",
        "nodes": "4",
        "command": ["fleet", "--on", "slurm", "launch", "t.py"],
        **given,
    }
    return batch_script(Submit(**options)).splitlines()


def test_tasks_and_their_cpus_are_those_of_one_task() -> None:
    """`--ntasks-per-node=8 --cpus-per-task=8` are 64 CPUs a node."""
    found = lines(options={"ntasks_per_node": "8", "cpus_per_task": "8", "gres": "gpu:8", "exclusive": True})
    assert "#SBATCH --ntasks-per-node=1" in found and "#SBATCH --cpus-per-task=64" in found
    assert "#SBATCH --gres=gpu:8" in found and "#SBATCH --exclusive" in found
    found = lines(options={"ntasks_per_node": "8", "cpus_per_gpu": "4"})
    assert "#SBATCH --cpus-per-gpu=4" in found and not [line for line in found if "cpus-per-task" in line]
    assert "#SBATCH --cpus-per-task=8" in lines(options={"cpus_per_task": "8"})
    assert not [line for line in lines() if "cpus" in line]


def test_the_script_is_one_for_plain_sbatch(tmp_path: Path) -> None:
    found = lines(
        options={"constraint": 'a&b "c"', "sbatch_arg": ("--mail-type=END", "-H")},
        only="n[1-2],n3",
        grace=90.5,
        without="n9",
        command=["fleet", "launch", "t.py", "a b; rm"],
        made=["made by\nhand"],
    )
    assert found[0] == "#!/bin/bash" and found[-1] == "exec fleet launch t.py 'a b; rm'"
    assert {"#SBATCH --nodelist=n[1-2],n3", "#SBATCH --exclude=n9", "#SBATCH -H"} < set(found)
    assert {"#SBATCH --mail-type=END", "#SBATCH --signal=TERM@121"} < set(found), "Slurm's KillWait is shorter"
    assert '#SBATCH --constraint="a&b \\"c\\""' in found and "# made by hand" in found
    assert [line for line in found if not line.startswith("#")] == [found[-1]], (
        "sbatch reads no option behind a command"
    )
    (tmp_path / "job.sh").write_text("\n".join(found))
    assert subprocess.run(["bash", "-n", tmp_path / "job.sh"], check=False).returncode == 0


@pytest.mark.parametrize(
    "options, word",
    [
        ({"sbatch_arg": ("--array=0-3",)}, "a run is one job, or"),
        ({"sbatch_arg": ("--comment=x",)}, "the run's id stands there"),
        ({"sbatch_arg": ("mail",)}, "no option"),
        ({"ntasks_per_node": "many"}, "not a number"),
        ({"partition": "a\n#SBATCH --uid=0"}, "cannot stand in a batch script"),
    ],
)
def test_what_cannot_stand_there(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        lines(options=options)


def test_no_value_ends_a_line() -> None:
    assert quoted("a#b c") == '"a#b c"' and quoted("gpu:8") == "gpu:8"


@pytest.mark.parametrize(
    "line, state, name, code",
    [
        ("17|PENDING|2026-11-27T22:46:00|Resources", State.WAITING, "PENDING", 1),
        ("17|PENDING|N/A|(Nodes required for job are DOWN, DRAINED|or so)", State.WAITING, "PENDING", 1),
        ("17|RUNNING|2026-11-27T22:46:00|None", State.RUNNING, "RUNNING", 1),
        ("17|COMPLETING|N/A|None", State.RUNNING, "COMPLETING", 1),
        ("17|TIMEOUT|N/A|TimeLimit", State.OVER, "TIMEOUT", 124),
        ("17|CANCELLED by 1000||", State.OVER, "CANCELLED", 130),
        ("17|OUT_OF_MEMORY||", State.OVER, "OUT_OF_MEMORY", 137),
        ("17|NODE_FAIL||", State.OVER, "NODE_FAIL", 122),
        ("17|LATER_RELEASE_STATE||", State.OVER, "LATER_RELEASE_STATE", 1),
    ],
)
def test_states(line: str, state: State, name: str, code: int) -> None:
    found = standing(line)
    assert (found.state, found.name, found.code) == (state, name, code)
    assert (found.begins is not None) == ("2026" in line and state is State.WAITING)


def test_what_helps_where_a_job_is_refused() -> None:
    assert "sinfo -s" in (hint("sbatch: error: invalid partition specified: x") or "")
    assert hint("sbatch: error: something else") is None


STUBS = {
    "squeue": "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1",
    "sacct": "case $* in *--completion*) echo '17|TIMEOUT';; *) echo accounting is disabled >&2; exit 1;; esac",
    "sbatch": "printf 'sbatch: error: %s\\n' 'invalid partition specified: x' failed >&2; exit 1",
}


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_a_job_that_slurmctld_has_forgotten(stubs: Path) -> None:
    assert SlurmQueue().look(["17"])["17"] == Standing(State.OVER, "TIMEOUT", code=124)
    (stubs / "squeue").write_text("#!/bin/sh\necho Unable to contact slurm controller >&2; exit 1\n")
    assert SlurmQueue().look(["17"])["17"].state is State.UNKNOWN
    (stubs / "squeue").write_text("#!/bin/sh\necho '170|RUNNING||'; echo '17|PENDING|N/A|Priority'\n")
    assert SlurmQueue().look(["17"])["17"].waits == "PENDING, Priority"


ARRAY = """#!/bin/sh
cat <<END
17_0|18|lab01|RUNNING|None
17_2|17|lab03|RUNNING|None
17_1|19||PENDING|Priority | of others
END
"""


def test_the_tasks_of_an_array_are_the_nodes_of_a_run(stubs: Path) -> None:
    """In the order of their numbers: the last one has the array's own."""
    (stubs / "squeue").write_text(ARRAY)
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


def test_all_jobs_that_lead_a_run(stubs: Path) -> None:
    lines = ["17|17|lab[01-02]|RUNNING|fleet:t-1", "19_0|20|lab02|RUNNING|fleet:u-1", "21|21|lab04|RUNNING|(null)"]
    (stubs / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    found = Slurm().enter_all()
    assert found["SLURM_JOB_NODELIST"] == "lab01,lab02" and list(jobs_of(found)) == ["lab01", "lab02"]
    (stubs / "squeue").write_text("#!/bin/sh\n")
    with pytest.raises(UsageError, match="no job of yours leads a run now"):
        Slurm().enter_all()


def test_an_array_that_never_is_whole_is_let_go(stubs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_ID": "0", array.WAIT: "1"}
    (stubs / "squeue").write_text(ARRAY)
    (stubs / "scancel").write_text(f"#!/bin/sh\necho $* >> {stubs}/cancelled\n")
    (stubs / "scancel").chmod(0o755)
    with pytest.raises(DeadlineError, match=r"within 1 s 2 of 3 nodes are there.*17_1 PENDING, Priority . of others"):
        array.gathered(environ)
    (stubs / "squeue").write_text(ARRAY.replace("PENDING", "CANCELLED"))
    with pytest.raises(HostFailed, match="17_1 CANCELLED"):
        array.gathered({**environ, array.WAIT: "900"})
    assert (stubs / "cancelled").read_text() == "17_[1-2]\n" * 2
    with pytest.raises(UsageError, match="task 0 of an array leads"):
        array.gathered({**environ, "SLURM_ARRAY_TASK_ID": "1"})


def test_an_array_waits_while_a_task_of_it_does(stubs: Path) -> None:
    lines = ["17_0|RUNNING|N/A|None", "17_1|PENDING|N/A|Priority", "17_2|RUNNING|N/A|None"]
    (stubs / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    assert SlurmQueue().look(["17_0"])["17_0"].waits == "PENDING, Priority"
    (stubs / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines[::2]))
    assert SlurmQueue().look(["17_0"])["17_0"].state is State.RUNNING


def test_variables_of_a_job_stand_in_a_file(tmp_path: Path) -> None:
    values = {"A": "b c", "B": '"', "C": "'quoted'", "D": "", "E": "a=b#\r", "F": 'it\'s "so"', "G": " x "}
    (tmp_path / "env").write_text(env_file(values), newline="")
    assert read_env_file(tmp_path / "env") == values
    for value in ("a\nb", "'it is \"so\"'"):
        with pytest.raises(UsageError, match="variable A: no line can hold its value"):
            env_file({"A": value})


def test_a_refusal_is_in_slurms_own_words(stubs: Path) -> None:
    (stubs / "job.sh").write_text("#!/bin/bash\n")
    with pytest.raises(UsageError, match="Slurm refuses the job: invalid partition specified: x") as raised:
        SlurmQueue().submit(stubs / "job.sh", "t-20261127-000000-0000", stubs / "job.out")
    assert "sinfo -s" in (raised.value.hint or "")
