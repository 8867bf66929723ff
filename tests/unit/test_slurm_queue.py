"""What Slurm's queue says of a job."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from fleet.cli.main import run
from fleet.errors import ConnectError, UsageError
from fleet.requests.submit import Submit
from fleet.sources.queue import Standing, State
from fleet.sources.slurm.queue import SlurmQueue, hint, standing_of
from fleet.transport.base import Cancel
from tests import stubs
from tests.run_folders import an_id, run_folder


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
        ("17|LATER_RELEASE_STATE||", State.UNKNOWN, "LATER_RELEASE_STATE", 1),
    ],
)
def test_states(line: str, state: State, name: str, code: int) -> None:
    found = standing_of(*line.split("|", 3)[1:])
    assert (found.state, found.name, found.code) == (state, name, code)
    assert (found.begins is not None) == ("2026" in line and state is State.WAITING)


def test_what_helps_where_a_job_is_refused() -> None:
    assert "sinfo -s" in (hint("sbatch: error: invalid partition specified: x") or "")
    assert hint("sbatch: error: something else") is None


STUBS = {
    "squeue": "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1",
    "sacct": "case $* in *--comp*) echo '17|TIMEOUT|0:0|job.sh';; *) echo accounting is disabled >&2; exit 1;; esac",
    "sbatch": "printf 'sbatch: error: %s\\n' 'invalid partition specified: x' failed >&2; exit 1",
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return stubs.put(tmp_path, STUBS, monkeypatch)


def test_a_job_that_slurmctld_has_forgotten(programs: Path) -> None:
    job = "17", programs / "r/job.sh"
    assert looked(*job) == Standing(State.OVER, "TIMEOUT", code=124)
    (programs / "squeue").write_text("#!/bin/sh\necho Unable to contact slurm controller >&2; exit 1\n")
    assert looked(*job).state is State.UNKNOWN
    lines = [f"170|RUNNING||{job[1]}|", f"17|PENDING|N/A|{job[1]}|(Nodes are DOWN, DRAINED|or so)"]
    put(programs, "squeue", lines)
    assert looked(*job).waits == "PENDING, (Nodes are DOWN, DRAINED|or so)"


def looked(job: str, script: Path) -> Standing:
    return SlurmQueue().look([(job, script)])[job, script]


def put(programs: Path, name: str, lines: Sequence[str]) -> None:
    stub = "".join(f"echo '{line}'\n" for line in lines)
    (programs / name).write_text(f"#!/bin/sh\necho $* >> {programs}/asked-{name}\n{stub}")


def test_another_job_of_this_number_is_not_the_runs(programs: Path) -> None:
    """Numbers begin again, and two clusters that share a folder have the same: the command tells them apart."""
    one, other = programs / "runs/r/job.sh", programs / "runs/s/job.sh"
    put(programs, "squeue", [f"17|FAILED|N/A|{other}|None", f"18|FAILED|N/A|{one}|None"])
    put(programs, "sacct", ["17|COMPLETED|0:0|another"])
    found = SlurmQueue().look([("17", one), ("17", other), ("18", one)])
    assert found["17", one] == Standing(State.OVER, code=122) and found["17", other].name == "FAILED"
    assert found["18", one].name == "FAILED"
    put(programs, "squeue", [f"17|RUNNING|N/A|/another/mount{str(one)[len(str(programs)) :]}|None"])
    assert looked("17", one).state is State.RUNNING


def test_tasks_of_an_array_are_asked_for_by_its_number(programs: Path) -> None:
    """Accounting has those that were cancelled while they waited in one row."""
    script = programs / "t-1-20261130-120000-abcd/job.sh"
    script.parent.mkdir()
    script.write_text("#SBATCH --array=1-9\n")
    jobs = [(f"17_{task}", script) for task in range(1, 10)]
    put(programs, "squeue", [f"17_{task}|RUNNING|N/A|{script}|None" for task in (8, 9)])
    rows = ["17_[1-3,5%2]|CANCELLED by 0|0:0|job.sh", "17_4|COMPLETED|0:0|job.sh", "17_[6-7]|TIMEOUT|0:0|other"]
    put(programs, "sacct", [*rows, "17_4.batch|FAILED|1:0|batch"])
    found = SlurmQueue().look(jobs)
    cancelled, lost = ("CANCELLED", 130), ("", 122)
    names = [*[cancelled] * 3, ("COMPLETED", 0), cancelled, lost, lost, ("RUNNING", 1), ("RUNNING", 1)]
    assert [(found[it].name, found[it].code) for it in jobs] == names
    assert (
        "--jobs=17 " in (programs / "asked-squeue").read_text() and "_" not in (programs / "asked-squeue").read_text()
    )
    assert "--jobs=17 " in (programs / "asked-sacct").read_text()


def test_accounting_is_asked_once_for_all_jobs(programs: Path) -> None:
    """What it takes for running, while slurmctld does not have it, is over; where it is silent, nothing is known."""
    jobs = [(f"{number}", programs / "r/job.sh") for number in (17, 18, 19)]
    put(programs, "squeue", [])
    put(programs, "sacct", ["17|COMPLETED|0:0|job.sh", "18|RUNNING|0:0|job.sh", "19|A_LATER_STATE|0:0|job.sh"])
    found = SlurmQueue().look(jobs)
    assert [found[it] for it in jobs] == [
        Standing(State.OVER, "COMPLETED", code=0),
        Standing(State.OVER, code=122),
        Standing(State.OVER, code=122),
    ]
    asked = (programs / "asked-sacct").read_text().splitlines()
    assert len(asked) == 2 and "--jobs=17,18,19 " in asked[0] and "--jobs=18,19 " in asked[1]
    (programs / "sacct").write_text(f"#!/bin/sh\necho >> {programs}/silent\necho Connection refused >&2; exit 1\n")
    assert {it.state for it in SlurmQueue().look(jobs).values()} == {State.UNKNOWN}
    assert (programs / "silent").read_text() == "\n", "no further request to who does not answer"


def test_jobs_by_their_script(programs: Path) -> None:
    """One that sbatch has not confirmed, or without a number: of an array, and of another cluster, too."""
    script = programs / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --array=0-1\n#SBATCH --clusters=c1,c2\n")
    lines = ["CLUSTER: c1", f"16|{script}.old", "CLUSTER: c2", f"17|{script}", f"19|{script}"]
    (programs / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    assert SlurmQueue().find(script) == "17_0@c2"
    script.write_text("#!/bin/bash\n")
    (programs / "squeue").write_text(f"#!/bin/sh\necho '17|{script}'\n")
    for printed in ("echo Submitted; exit 0", "echo 'sbatch: error: Socket timed out' >&2; exit 1"):
        (programs / "sbatch").write_text(f"#!/bin/sh\n{printed}\n")
        assert SlurmQueue().submit(script, programs / "job.out", Cancel()) == "17"
    (programs / "sbatch").write_text("#!/bin/sh\necho '18;c3'\n")
    assert SlurmQueue().submit(script, programs / "job.out", Cancel()) == "18@c3"


@pytest.mark.parametrize(
    ("printed", "job"),
    [
        ("Remaining 500 GPUh\\n18\\n", "18"),
        ("Remaining 500 GPUh", "17"),
        ("500\\n18\\n", "17"),
        ("  18;c3 \\n", "18@c3"),
    ],
)
def test_a_number_is_a_line_of_its_own_and_the_only_one(printed: str, job: str, programs: Path) -> None:
    """A site's plugins print, too: the job is looked for where it is not clear which number is its own."""
    script = programs / "job.sh"
    script.write_text("#!/bin/bash\n")
    (programs / "squeue").write_text(f"#!/bin/sh\necho '17|{script}'\n")
    (programs / "sbatch").write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    assert SlurmQueue().submit(script, programs / "job.out", Cancel()) == job


def test_ctrl_c_ends_the_wait_for_a_confirmation(programs: Path) -> None:
    script, cancel, begun = programs / "job.sh", Cancel(), time.monotonic()
    script.write_text("#!/bin/bash\n")
    for name in ("sbatch", "squeue"):
        (programs / name).write_text("#!/bin/sh\ncase $* in *--me*) exit 0;; esac\nexec sleep 600\n")
    timer = threading.Timer(0.3, cancel.set)
    timer.start()
    with pytest.raises(ConnectError, match="sbatch was interrupted before it answered"):
        SlurmQueue().submit(script, programs / "job.out", cancel)
    timer.join()
    assert time.monotonic() - begun < 300.0


def test_the_cluster_is_the_scripts(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks for the job later may have other variables than who requested it."""
    ask = Submit(on="slurm", runs_dir=programs / "runs", name="t", command=["t"], environ={"SLURM_CLUSTERS": "c1,c2"})
    script = programs / "job.sh"
    script.write_text(SlurmQueue().script(ask))
    (programs / "squeue").write_text(f"#!/bin/sh\necho $* > {programs}/asked\n")
    for now in ("c3", ""):
        monkeypatch.setenv("SLURM_CLUSTERS", now)
        assert SlurmQueue().find(script) is None
        assert "--clusters=c1,c2 " in (programs / "asked").read_text()
    script.write_text("#!/bin/bash\n")
    monkeypatch.setenv("SLURM_CLUSTERS", "c3")
    assert SlurmQueue().find(script) is None
    assert "--clusters" not in (programs / "asked").read_text()


def test_an_array_waits_while_a_task_of_it_does(programs: Path) -> None:
    states = ["17_0|RUNNING|N/A|{}|None", "17_1|PENDING|N/A|{}|Priority", "17_2|RUNNING|N/A|{}|None"]
    lines = [line.format(programs / "r/job.sh") for line in states]
    put(programs, "squeue", lines)
    assert looked("17_0", programs / "r/job.sh").waits == "PENDING, Priority"
    put(programs, "squeue", lines[::2])
    assert looked("17_0", programs / "r/job.sh").state is State.RUNNING


def test_a_refusal_is_in_slurms_own_words(programs: Path) -> None:
    (programs / "job.sh").write_text("#!/bin/bash\n")
    with pytest.raises(UsageError, match="Slurm refuses the job: invalid partition specified: x") as raised:
        SlurmQueue().submit(programs / "job.sh", programs / "job.out", Cancel())
    assert "sinfo -s" in (raised.value.hint or "")


def test_only_a_runs_own_job_is_cancelled(programs: Path, tmp_path: Path) -> None:
    """The number stands in the run's folder, which may be anybody's, and numbers come again."""
    script, done = tmp_path / "runs/r/job.sh", tmp_path / "cancelled"
    (programs / "scancel").write_text(f"#!/bin/sh\necho $* >> {done}\n")
    (programs / "scancel").chmod(0o755)
    shown = f"JobId=17 JobName=x UserId=me({os.getuid()}) GroupId=g(1) Command={script} WorkDir=/"
    lines = {
        "own": shown,
        "another script": shown.replace("/job.sh", "/other.sh"),
        "another user": shown.replace(f"({os.getuid()})", f"({os.getuid() + 1})"),
        "not known": "",
    }
    for whose, line in lines.items():
        (programs / "scontrol").write_text(f"#!/bin/sh\necho '{line}'\n")
        (programs / "scontrol").chmod(0o755)
        for end in (SlurmQueue().cancel, SlurmQueue().interrupt):
            if whose == "own":
                end("17", script)
            else:
                with pytest.raises(UsageError, match="does not show that job 17 is yours"):
                    end("17", script)
    assert done.read_text().splitlines() == ["17", "--batch --signal=INT 17"]


@pytest.mark.parametrize("job", ["--user=root", "17 18", "17;id", "1" * 30, "17_", "\u0661\u0667"])
def test_what_is_no_number_is_no_job_to_any_verb(
    job: str, programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(programs)
    (programs / "hostfile").write_text("127.0.0.1 port=1\n")
    for name in ("squeue", "sacct", "scontrol", "scancel"):
        (programs / name).write_text(f"#!/bin/sh\necho {name} $* >> {programs}/asked\n")
        (programs / name).chmod(0o755)
    submitted = {"event": "submitted", "on": "slurm", "job": job, "by": "me", "script": "job.sh", "logs": "."}
    folder = run_folder(programs / "runs", an_id("t"), plan={"started": 1.0}, events=["version", submitted])
    (folder / "job.sh").write_text("")
    for line in ("runs", f"stop {folder.name}", f"logs {folder.name}"):
        assert run(line.split()) != 125
        assert "Traceback" not in capsys.readouterr().err
    assert not (programs / "asked").exists(), (programs / "asked").read_text()
    (folder / "events.jsonl").write_text((folder / "events.jsonl").read_text().replace(json.dumps(job), '"17"'))
    assert run(["runs"]) == 0 and "17" in (programs / "asked").read_text(), "a number is one"


def test_a_line_of_a_job_of_a_cluster_with_a_number_in_its_name() -> None:
    assert SlurmQueue().of_line("17_1@gpu_2", 5) == "17_5@gpu_2"
