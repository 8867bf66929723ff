"""What Slurm's queue says of a job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fleet.cli.main import run
from fleet.errors import UsageError
from fleet.sources.queue import Standing, State
from fleet.sources.slurm.queue import SlurmQueue, hint, standing
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
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return stubs.put(tmp_path, STUBS, monkeypatch)


def test_a_job_that_slurmctld_has_forgotten(programs: Path) -> None:
    assert SlurmQueue().look(["17"])["17"] == Standing(State.OVER, "TIMEOUT", code=124)
    (programs / "squeue").write_text("#!/bin/sh\necho Unable to contact slurm controller >&2; exit 1\n")
    assert SlurmQueue().look(["17"])["17"].state is State.UNKNOWN
    (programs / "squeue").write_text("#!/bin/sh\necho '170|RUNNING||'; echo '17|PENDING|N/A|Priority'\n")
    assert SlurmQueue().look(["17"])["17"].waits == "PENDING, Priority"


def test_an_array_waits_while_a_task_of_it_does(programs: Path) -> None:
    lines = ["17_0|RUNNING|N/A|None", "17_1|PENDING|N/A|Priority", "17_2|RUNNING|N/A|None"]
    (programs / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    assert SlurmQueue().look(["17_0"])["17_0"].waits == "PENDING, Priority"
    (programs / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines[::2]))
    assert SlurmQueue().look(["17_0"])["17_0"].state is State.RUNNING


def test_a_refusal_is_in_slurms_own_words(programs: Path) -> None:
    (programs / "job.sh").write_text("#!/bin/bash\n")
    with pytest.raises(UsageError, match="Slurm refuses the job: invalid partition specified: x") as raised:
        SlurmQueue().submit(programs / "job.sh", "t-20261127-000000-0000", programs / "job.out")
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
