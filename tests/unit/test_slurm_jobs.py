"""What a job of Slurm's, and the command that looks on, put on record of its run."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from fleet.answers.run_start_events import Submitted
from fleet.answers.runs import RunSummary
from fleet.cli.line.line import Settings
from fleet.cli.main import run
from fleet.cli.run import claim, submit
from fleet.errors import ConnectError, FleetError, Interrupted, UsageError
from fleet.model import Host, Inventory, Report
from fleet.node.base.processes import myself
from fleet.node.gang.ends import run_end
from fleet.ops.run.kept import job, reader
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.launch import run as launch_run
from fleet.ops.run.plan.plan import plan_of
from fleet.ops.run.submit import watch
from fleet.protocol.state import STATE
from fleet.requests.launch import Launch
from fleet.runtime import Runtime
from fleet.sources.queue import Standing, State
from fleet.transport.base import JobEnd
from fleet.transport.local import LocalTransport
from fleet.transport.slurm import Done, Refused, Unknown, ask_slurm, own_environment, why_over
from tests import stubs
from tests.run_folders import an_id, run_folder

RUN = an_id("t")
SHOWN = 'echo "JobId=17 JobState=COMPLETING Reason=TimeLimit"'
UNCONFIRMED = {"event": "submitted", "on": "slurm", "job": "", "by": "me", "script": "job.sh", "logs": "runs"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's, whose job sbatch has not confirmed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = run_folder(tmp_path / "runs", RUN, events=["version", {**UNCONFIRMED, "asked": {"nodes": "2"}}])
    (made / "job.sh").write_text("#!/bin/bash\n")
    (tmp_path / "t.py").write_text("")
    stubs.put(tmp_path, {"squeue": f"echo '17|{made}/job.sh'; echo '18|{tmp_path}/other.sh'"}, monkeypatch)
    return made


@pytest.fixture
def in_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same, within its job, on a node without Slurm's other commands."""
    given = {"FLEET_CLAIMS": RUN, "SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "localhost", "SLURM_GPUS_ON_NODE": "2"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{folder.parent.parent}:/nowhere")
    yield folder


def jobs(folder: Path) -> list[Any]:
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [it["job"] for it in events if it["event"] == "submitted"]


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_an_end_before_the_run_begins_is_on_record(in_job: Path) -> None:
    """Written by the job, with its number, which the command that requested it has not learned."""
    code = run(["--on", "slurm", "launch", "t.py"])
    assert code == summary(in_job)["exit_code"] == 2 and jobs(in_job) == ["", "17"]
    assert "srun is not on this machine" in summary(in_job)["error"]["message"]
    assert summary(in_job)["end"]["by"] == "failure"


def test_a_node_that_does_not_share_the_folder_has_one_of_its_own(in_job: Path) -> None:
    shutil.rmtree(in_job.parent)
    assert run(["--on", "slurm", "launch", "t.py"]) == summary(in_job)["exit_code"] == 2
    assert "srun is not on this machine" in summary(in_job)["error"]["message"]


def test_a_copy_of_the_script_leads_no_run_of_this_id(in_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(["--on", "slurm", "launch", "t.py"])
    (in_job / "summary.json").unlink()
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    assert run(["--on", "slurm", "launch", "t.py"]) == 2
    assert not (in_job / "summary.json").exists() and jobs(in_job) == ["", "17"]


def test_a_job_that_was_not_confirmed_is_found_by_its_script(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = f"JobId=17 UserId=me({os.getuid()}) Command={folder}/job.sh x"
    listing = f"""case $* in *--me*) echo '17|{folder}/job.sh';; *)
        if [ -e {folder}/gone ]; then state=CANCELLED; else state=PENDING; fi
        echo "17|$state|N/A|{folder}/job.sh|None";; esac"""
    commands = {"squeue": listing, "scontrol": f"echo '{shown}'", "scancel": f"touch {folder}/gone"}
    stubs.put(folder.parent.parent, commands, monkeypatch)
    assert run(["stop", RUN]) == 0
    assert "job 17 is out of the queue" in capsys.readouterr().out and jobs(folder) == ["", "17"]
    assert summary(folder)["exit_code"] == 130, "the end stays when Slurm has forgotten the job"
    for name in commands:
        (folder.parent.parent / name).unlink()
    assert run(["runs"]) == 0
    assert " stopped " in capsys.readouterr().out


def test_what_scancel_did_not_do_is_not_called_cancelled(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = f"JobId=17 UserId=me({os.getuid()}) Command={folder}/job.sh x"
    listing = f"case $* in *--me*) echo '17|{folder}/job.sh';; *) echo '17|PENDING|N/A|{folder}/job.sh|None';; esac"
    fails = (
        "echo 'scancel: error: Kill job error on job id 17: Unable to contact slurm controller (connect failure)' >&2"
    )
    commands = {"squeue": listing, "scontrol": f"echo '{shown}'", "scancel": f"{fails}; exit 1"}
    stubs.put(folder.parent.parent, commands, monkeypatch)
    assert run(["stop", RUN]) == 122
    printed = capsys.readouterr()
    assert "job 17 is not cancelled" in printed.err and "out of the queue" not in printed.out + printed.err
    assert not (folder / "summary.json").exists()


@pytest.mark.parametrize(
    ("script", "kind", "why"),
    [
        ("echo 17", Done, ""),
        (
            "echo 'sbatch: error: Batch job submission failed: Invalid qos specification' >&2; exit 1",
            Refused,
            "Invalid",
        ),
        ("echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1", Unknown, "Socket timed out"),
        ("echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1", Refused, "Unable"),
        ("echo 'sbatch: error: Unable to contact slurm controller (receive failure)' >&2; exit 1", Unknown, "Unable"),
        ("echo 'sbatch: error: Zero Bytes were transmitted or received' >&2; exit 1", Unknown, "Zero Bytes"),
        ("exec sleep 60", Unknown, "has not answered within 0.2 s"),
        ("kill -9 $$", Unknown, "exit status -9"),
    ],
)
def test_an_answer_has_three_cases(
    script: str, kind: type[Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubs.put(tmp_path, {"sbatch": script}, monkeypatch)
    answer = ask_slurm(["sbatch", "job.sh"], seconds=0.2 if "sleep" in script else 30.0)
    assert isinstance(answer, kind) and why in getattr(answer, "why", "")
    assert isinstance(ask_slurm(["no-such-command"]), Refused)


def test_a_preemption_with_grace_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm moves the EndTime of such a job to the end of GraceTime."""
    soon = "EndTime=$(date -d '+60 seconds' +%Y-%m-%dT%H:%M:%S)"
    for preempted, name, code in (("2026-11-30T15:00:00", "PREEMPTED", 130), ("None", "TIMEOUT", 124)):
        line = f"JobId=17 JobState=RUNNING {soon} PreemptTime={preempted}"
        stubs.put(tmp_path, {"scontrol": f'echo "{line}"'}, monkeypatch)
        assert why_over("17", signalled=True) == JobEnd(f"ended by Slurm: {name}", code)


@pytest.mark.parametrize(
    ("script", "end_time", "name", "code"),
    [
        (f"sleep 1.5; {SHOWN}", 0, "TIMEOUT", 124),  # slowly
        (
            f"[ -e $0.again ] && {SHOWN} || {{ touch $0.again; echo 'Socket timed out' >&2; exit 1; }}",
            0,
            "TIMEOUT",
            124,
        ),
        ("exec sleep 60", 0, "", 130),
        ("echo 'scontrol: error: Unable to contact slurm controller (connect failure)' >&2; exit 1", 0, "", 130),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", 0, "", 130),
        ("", 0, "", 130),
        ("exec sleep 60", 60, "", 130),
        ("exec sleep 60", -1, "TIMEOUT", 124),  # it is past: Slurm sends no other signal then
        ("exec sleep 60", -3600, "", 130),  # the limit was raised since
    ],
)
def test_what_slurm_does_not_answer_is_no_answer(
    script: str, end_time: int, name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was sent a signal: not known why is neither a user's cancel nor a time limit."""
    stubs.put(tmp_path, {"scontrol": script}, monkeypatch)
    if end_time:
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + end_time))
        monkeypatch.setenv("SLURM_JOB_ID", "18")
        assert (other := why_over("17", signalled=True, seconds=0.1)) and not other.known, "it is of another job"
        monkeypatch.setenv("SLURM_JOB_ID", "17")
    end = why_over("17", signalled=True, seconds=60.0 if name and "sleep" not in script else 2.5)
    assert end is not None and (end.known, end.code) == (bool(name), code)
    assert end.why == f"ended by Slurm: {name}" if name else "; why is not known: " in end.why
    assert name or why_over("17", seconds=0.1) is None, "it goes on, as far as is known"


def asked(folder: Path, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has squeue show the run's job so, whose number is on record."""
    RunFolder(folder).event(Submitted(on="slurm", job="17", by="me", script="job.sh", logs=str(folder)))
    shown = f"JobId=17 UserId=me({os.getuid()}) Command={folder}/job.sh x"
    commands = {"squeue": f"echo '17|{state}|N/A|{folder}/job.sh|None'", "scontrol": f"echo '{shown}'", "scancel": ""}
    stubs.put(folder.parent.parent, commands, monkeypatch)


def watched(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    emit: Callable[[Any], None] = lambda event: None,
    seconds: float = 20.0,
) -> Report:
    monkeypatch.setattr(job, "SOON_SECONDS", 0.0)
    monkeypatch.setattr(watch, "BRING_SECONDS", 0.0)
    found = job.job_of(RUN, folder.parent)
    assert found is not None
    runtime = Runtime(LocalTransport(), emit=emit)
    timer = threading.Timer(seconds, runtime.detach.set)  # no test waits for ever
    timer.start()
    try:
        return watch.watch(watch.watch_of(folder.parent, *found, detach=False), runtime)
    finally:
        timer.cancel()


def test_a_job_that_ended_well_and_whose_folder_is_not_shared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run is on its node alone: nothing here shows that it failed."""
    asked(folder, "COMPLETED", monkeypatch)
    notices = list[Any]()
    assert watched(folder, monkeypatch, notices.append).exit_code == summary(folder)["exit_code"] == 0
    (notice,) = [it for it in notices if getattr(it, "level", "") == "warning"]
    assert "shows nothing of its run" in notice.message and "share" in notice.hint


def test_the_reason_is_looked_for_where_the_job_prints(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that --output named, as Slurm shows it; without it job.out in the run's folder."""
    asked(folder, "NODE_FAIL", monkeypatch)
    (folder / "job.out").write_text("error: no disk here\n")
    (printed := folder.parent / "17.log").write_text("error: no module named cuda\nbye\n")
    shown = f"JobId=17 UserId=me({os.getuid()}) Command={folder}/job.sh StdOut={printed} x"
    stubs.put(folder.parent.parent, {"scontrol": f"echo '{shown}'"}, monkeypatch)
    report = watched(folder, monkeypatch)
    assert report.exit_code == 122 and f"{printed}: error: no module named cuda" in str(report.as_json()["error"])


def test_a_leader_without_a_sign_of_life_is_named_while_its_job_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(folder, "RUNNING", monkeypatch)
    (folder / STATE).write_text("{}")
    monkeypatch.setattr(watch, "SILENT_SECONDS", 0.3)
    notices = list[Any]()
    watched(folder, monkeypatch, notices.append, seconds=8.0)
    (notice,) = [it for it in notices if getattr(it, "level", "") == "warning"]
    assert "has shown no sign of life" in notice.message and "scontrol show job 17" in notice.hint


def begun_again(folder: Path, monkeypatch: pytest.MonkeyPatch, restarts: str = "") -> dict[str, Any]:
    """Returns what the command of a job's script claims, begun so often again as slurmctld knows."""
    monkeypatch.setattr(claim, "settings_of", lambda: SimpleNamespace(on="slurm", dry_run=False))
    monkeypatch.setenv("FLEET_CLAIMS", RUN)
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    claims = claim.claimed(folder.parent)
    assert "FLEET_CLAIMS" not in os.environ and claim.claimed(folder.parent) == {}, "what it starts is another run"
    return claims


def test_a_job_that_slurmctld_begins_again_goes_on_with_its_run(in_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slurmctld that was restarted has forgotten that it began the job, and counts its restarts from 0."""
    kept = in_job / "summary.json"
    assert begun_again(in_job, monkeypatch) == {"claims": RUN, "attempt": 0}
    (in_job / "run.json").write_text("{}")
    assert begun_again(in_job, monkeypatch)["attempt"] == 1, "it was killed, and has no end on record"
    kept.write_text(json.dumps({"exit_code": 122, "end": {"by": "queue"}}))
    assert begun_again(in_job, monkeypatch)["attempt"] == 1
    (in_job / ".attempt").write_text("2")
    for restarts, attempt in (("0", 3), ("1", 3), ("4", 4)):
        assert begun_again(in_job, monkeypatch, restarts) == {"claims": RUN, "attempt": attempt}


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    "end",
    [
        (0, "done"),
        (77, "failure"),
        (130, "failure"),  # a rank's own exit code, which is no cancel
        (130, "PREEMPTED"),
        (130, "CANCELLED"),
        (130, "stop"),
        (130, "interrupt"),
    ],
)
def test_a_job_that_slurmctld_begins_again_makes_no_second_run(
    end: tuple[int, str],
    begun: bool,
    in_job: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that was killed has forgotten that the job has ended, or was cancelled: that end is on record."""
    code, by = end
    if begun:
        (in_job / "run.json").write_text("{}")
    if by.isupper():
        job.keep_end(in_job, job.ended_in_queue(in_job, "17", Standing(State.OVER, by, code=code)))
    else:
        (in_job / "summary.json").write_text(json.dumps({"exit_code": code, "end": {"by": by}}))
    before = (in_job / "summary.json").read_bytes()
    assert run(["--on", "slurm", "launch", "t.py"]) == code
    said = capsys.readouterr().err
    assert f"run {RUN} has ended, with exit code {code}, and Slurm begins job 17 again" in said
    again = f"fleet --on slurm launch --again {RUN}" if begun else f"sbatch --chdir={os.getcwd()} {in_job}/job.sh"
    assert f"hint: {again}\n" in said, "a run that never began has no run.json, and its script as it was requested"
    assert (in_job / "summary.json").read_bytes() == before and len([*in_job.parent.iterdir()]) == 1
    final = by not in ("failure", "PREEMPTED", "interrupt")  # the last: by a signal, maybe of a node that rebooted
    if final:  # what a user ended stays so: slurmctld counts a job that it has lost, too
        with pytest.raises(click.exceptions.Exit):
            begun_again(in_job, monkeypatch, "1")
    else:
        assert begun_again(in_job, monkeypatch, "1")["attempt"] == 1, "its user has requeued it"
    assert (in_job / "summary.json").exists() is final, "who looks on sees that it goes on"


@pytest.mark.parametrize("code", [0, 7])
def test_a_plan_made_in_a_job_that_is_begun_again_repeats_no_end_and_claims_nothing(
    code: int, in_job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = in_job / "summary.json"
    kept.write_text(json.dumps({"exit_code": code, "end": {"by": "done"}}))
    before = {it: it.read_bytes() for it in in_job.iterdir()}
    for restarts in ("0", "1"):
        monkeypatch.setenv("FLEET_CLAIMS", RUN)
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
        assert run(["--on", "slurm", "--dry-run", "launch", "t.py"]) == 0
        printed = capsys.readouterr()
        assert "t.py" in printed.out and "has ended" not in printed.err, printed
        assert run(["--on", "slurm", "--dry-run", "launch", "--nnodes", "9", "t.py"]) not in (0, code)
    assert {it: it.read_bytes() for it in in_job.iterdir()} == before, "nor is what it refuses put on record"


@pytest.mark.parametrize("code", [0, 7])
def test_a_job_whose_run_ends_as_it_is_begun_again_ends_with_its_code(
    code: int, in_job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process before it led the run until then."""
    end = json.dumps({"exit_code": code, "end": {"by": "done"}})
    draft = plan_of(
        Inventory((Host("a", "198.18.0.1"),)), Launch("t.py", runs_dir=in_job.parent, claims=RUN, attempt=1)
    )
    monkeypatch.setattr(claim, "settings_of", lambda: SimpleNamespace(on="slurm", dry_run=False))
    with pytest.raises(click.exceptions.Exit) as ended, claim.on_record(in_job.parent):
        (in_job / "summary.json").write_text(end)
        launch_run.claim(draft)
    assert ended.value.exit_code == code and (in_job / "summary.json").read_text() == end
    said = capsys.readouterr().err
    assert f"run {RUN} has ended, with exit code {code}" in said and "hint: " in said


def test_a_job_that_is_begun_again_leads_its_run_only_after_the_process_before_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_run, "HANDOVER_SECONDS", 1.0)
    draft = plan_of(
        Inventory((Host("a", "198.18.0.1"),)), Launch("t.py", runs_dir=folder.parent, claims=RUN, attempt=1)
    )
    (before := RunFolder(folder)).hold()
    with pytest.raises(UsageError, match="already"):
        launch_run.claim(draft)
    monkeypatch.setattr(launch_run, "HANDOVER_SECONDS", 60.0)
    end = json.dumps({"exit_code": 0, "end": {"by": "done"}})
    leader = threading.Timer(0.3, lambda: ((folder / "summary.json").write_text(end), before.release()))
    leader.start()
    with pytest.raises(UsageError, match="has ended meanwhile"):
        launch_run.claim(draft)
    leader.join()
    for _ in range(2):  # and where it has gone already
        assert (folder / "summary.json").read_text() == end and (free := RunFolder(folder)).hold()
        assert not (folder / ".attempt").exists()
        free.release()
        with pytest.raises(UsageError, match="has ended meanwhile"):
            launch_run.claim(draft)


@pytest.mark.parametrize(("within", "more"), [(False, {}), (True, {}), (True, {"submit": True})])
def test_again_requests_what_the_earlier_job_did_unless_the_hosts_are_there(
    within: bool, more: dict[str, Any], in_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the job of the later run begins it, and is refused none of the options that made it."""
    monkeypatch.setenv("SLURM_JOB_ID", "18" if within else "")
    settings = Settings()
    settings.on = "slurm"
    monkeypatch.setattr(submit, "settings_of", lambda: settings)
    with click.Context(click.Command("launch")):
        requested = submit.as_before(RUN, "again", in_job.parent, dict(more))
        waits = submit.waited_for(dict(requested)) is not None
    assert requested == ({} if within and not more else {"nodes": "2", **more}) and waits is bool(requested)


def test_the_queue_is_asked_once_why(in_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on record of a run's end by then is not asked for again."""
    count = f"echo >>{in_job}/asked; echo 'JobId=17 JobState=COMPLETING Reason=TimeLimit'"
    stubs.put(in_job.parent.parent, {"scontrol": count}, monkeypatch)
    monkeypatch.setattr(claim, "settings_of", lambda: SimpleNamespace(on="slurm", dry_run=False))
    end = {"exit_code": 124, "end": {"by": "queue"}}
    with pytest.raises(FleetError), claim.on_record(in_job.parent):
        (in_job / "summary.json").write_text(json.dumps(end))
        raise ConnectError("its step has ended")
    assert summary(in_job) == end and not (in_job / "asked").exists()
    monkeypatch.setenv("FLEET_CLAIMS", RUN)
    with pytest.raises(FleetError), claim.on_record(in_job.parent):  # the next attempt's
        raise ConnectError("its step has ended")
    assert summary(in_job) != end and (in_job / "asked").read_text() == "\n"


def test_a_queues_end_replaces_none_that_is_on_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that its time limit ended has its own summary, though its queue ended it."""
    asked(folder, "CANCELLED", monkeypatch)
    text = "ended by Slurm: TIMEOUT"
    answer = RunSummary(RUN, world_size=8, logs=str(folder), stopped=text, end=run_end("queue", text, 124))
    (folder / "summary.json").write_text(json.dumps(Report("launch", (), 124, answer=answer).as_json()))
    before = (folder / "summary.json").read_bytes()
    assert run(["stop", RUN]) == 0 and (folder / "summary.json").read_bytes() == before
    report = watched(folder, monkeypatch)
    assert report.exit_code == 124 and report.read(RunSummary).world_size == 8
    assert (folder / "summary.json").read_bytes() == before


def test_a_summary_that_comes_late_is_the_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system shows what a node has written only after the queue has shown the end of the job."""
    asked(folder, "OUT_OF_MEMORY", monkeypatch)
    answer = RunSummary(RUN, world_size=8, logs=str(folder), end=run_end("failure", "a rank failed", 77))
    text = json.dumps(Report("launch", (), 77, answer=answer).as_json())
    begin = watch.ended_in_queue

    def late(*given: Any) -> Report:
        (folder / "summary.json").write_text(text)
        return begin(*given)

    monkeypatch.setattr(watch, "ended_in_queue", late)
    report = watched(folder, monkeypatch)
    assert report.exit_code == 77 and (folder / "summary.json").read_text() == text


def test_a_run_that_is_still_led_is_not_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slurmctld that has forgotten that it began a job cancels it in the queue, and its node runs it for minutes."""
    asked(folder, "CANCELLED", monkeypatch)
    monkeypatch.setattr(watch, "BRING_SECONDS", 0.1)
    (folder / "run.json").write_text("{}")
    (leader := RunFolder(folder)).hold()
    leader.lead(120.0)
    with pytest.raises(ConnectError, match="goes on, though its job is over"):
        watched(folder, monkeypatch)
    assert run(["stop", RUN]) == 122 and "a process still leads it" in capsys.readouterr().err
    assert not (folder / "summary.json").exists()
    leader.release()
    assert watched(folder, monkeypatch).exit_code == 130
    assert summary(folder)["end"]["message"] == "job 17 was cancelled", "a rank ran"


def test_a_lock_without_a_sign_of_life_leads_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An NFS server keeps the lock of a node that crashed, and state.json names its process, of another machine."""
    asked(folder, "NODE_FAIL", monkeypatch)
    monkeypatch.setattr(watch, "BRING_SECONDS", 0.1)
    (crashed := RunFolder(folder)).hold()
    (folder / STATE).write_text(json.dumps({"leader": {**myself(), "machine": "crashed"}, "leads": True}))
    with pytest.raises(ConnectError, match="goes on, though its job is over"):
        watched(folder, monkeypatch)
    os.utime(folder / STATE, (0, time.time() - 60))
    assert watched(folder, monkeypatch).exit_code == 122
    crashed.release()


def test_who_only_lists_runs_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(folder, "CANCELLED", monkeypatch)
    before = (folder / "events.jsonl").read_bytes()
    assert run(["runs"]) == 0 and " stopped " in capsys.readouterr().out
    assert not (folder / "summary.json").exists() and (folder / "events.jsonl").read_bytes() == before


def test_a_job_that_was_asked_to_end_may_be_there_still(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(folder, "PENDING", monkeypatch)
    assert run(["stop", RUN]) == 0
    assert "job 17 was requested to end" in capsys.readouterr().out and not (folder / "summary.json").exists()


def test_the_queue_is_asked_soon_once_an_attempt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a job that was put back waits, the end of its last attempt stands there for long."""
    asked(folder, "PENDING", monkeypatch)
    end = run_end("queue", "ended by Slurm: PREEMPTED", 130)
    report = Report("launch", (), 130, answer=RunSummary(RUN, logs=str(folder), end=end))
    (folder / "summary.json").write_text(json.dumps(report.as_json()))
    hurried, runtime = list[float](), Runtime(LocalTransport())
    monkeypatch.setattr(reader, "POLL_SECONDS", 0.01)
    timer = threading.Timer(0.5, runtime.detach.set)

    def hurry(*_: object) -> None:
        hurried.append(0.0)
        if len(hurried) == 1:
            timer.start()

    monkeypatch.setattr(job.Asking, "hurry", hurry)
    found = job.job_of(RUN, folder.parent)
    assert found is not None
    watch.watch(watch.watch_of(folder.parent, *found, detach=False), runtime)
    timer.join()
    assert len(hurried) == 1


@pytest.mark.parametrize(
    ("state", "by", "code"),
    [
        ("JobState=RUNNING PreemptTime=2026-11-30T15:00:00", "queue", 130),
        ("JobState=COMPLETING Reason=TimeLimit", "queue", 124),
        ("JobState=PENDING Reason=None", "queue", 130),  # slurmctld was restarted, and has forgotten that it began
        ("JobState=COMPLETING Reason=None", "stop", 130),
        ("JobState=CANCELLED Reason=None", "stop", 130),
        ("JobState=RUNNING", "failure", 122),
    ],
)
def test_what_slurm_ends_before_the_run_begins_may_begin_again_unless_it_was_cancelled(
    state: str, by: str, code: int, in_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal in preflight or in --sync, or a step that ends then, is no failure of the run's."""
    stubs.put(in_job.parent.parent, {"scontrol": f"echo 'JobId=17 {state}'"}, monkeypatch)
    monkeypatch.setattr(claim, "settings_of", lambda: SimpleNamespace(on="slurm", dry_run=False))
    error: FleetError = Interrupted("interrupted") if "Preempt" in state else ConnectError("its step has ended")
    with pytest.raises(FleetError), claim.on_record(in_job.parent):
        raise error
    assert summary(in_job)["end"]["by"] == by and summary(in_job)["exit_code"] == code
    assert job.has_ended(in_job) is (by != "queue")


def test_what_a_job_is_for_reaches_no_other_process() -> None:
    of_a_job = {"FLEET_CLAIMS": RUN, "FLEET_REQUEUES": "3", "FLEET_ARRAY_WAIT": "60", "SLURM_JOB_ID": "17"}
    assert own_environment({**of_a_job, "SLURM_CONF": "/a/b"}) == {"SLURM_CONF": "/a/b"}
