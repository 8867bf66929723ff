"""Slurm that fails, hangs, answers late or is missing, at drawn moments: never two jobs of one submission, never a lost
one, never a false end. Slurm is a small model behind its commands."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fleet.answers.run_start_events import Submitted
from fleet.answers.runs import LeftAlone, RunSummary
from fleet.errors import ConnectError, UsageError
from fleet.model import Report
from fleet.node.gang.ends import run_end
from fleet.ops.plans import RequestPlan
from fleet.ops.run.kept import job, local, reader
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.reader import events_of
from fleet.ops.run.submit import submit, watch
from fleet.requests.submit import Submit
from fleet.runtime import Runtime
from fleet.sources.slurm import queue
from fleet.transport import slurm
from fleet.transport.local import LocalTransport

CASES = 200
FAULTS = ("lost request", "lost answer", "late", "hangs", "hangs, is done", "missing", "killed", "silent")
CODES = (0, 0, 1, 77, 123)


@dataclass
class Job:
    """shared: the nodes and the head see one folder. ends: the tick at which it does by itself, with this code."""

    number: int
    script: Path
    begins: int
    ends: int
    code: int
    shared: bool
    state: str = "PENDING"

    def end(self, state: str, code: int) -> None:
        ran, self.state, self.code = self.state == "RUNNING", state, code
        if ran and self.shared:
            folder = self.script.parent
            by = "interrupt" if code == 130 else "failure" if code else "done"
            answer = RunSummary(folder.name, logs=str(folder), end=run_end(by, by, code))
            (folder / "summary.json").write_text(json.dumps(Report("launch", (), code, answer=answer).as_json()))


@dataclass
class Model:
    """Slurm, and a user who presses Ctrl-C at some ticks. faulty: how likely a fault is at each command."""

    draw: random.Random
    faulty: float
    runtime: Runtime
    presses: Sequence[int] = ()
    refuses: bool = False
    jobs: dict[int, Job] = field(default_factory=dict)
    late: list[tuple[int, list[str]]] = field(default_factory=list)
    submitted: int = 0
    tick: int = 0
    forgets: bool = False
    fault: str = ""
    missed: bool = False

    def which(self, program: str) -> str | None:
        self.fault = self.draw.choice(FAULTS) if self.draw.random() < self.faulty else ""
        self.missed = self.missed or self.fault == "missing"
        return None if self.fault == "missing" else f"/usr/bin/{program}"

    def finish(
        self, argv: Sequence[str], stdin: bytes, seconds: float, cancel: Callable[[], bool] | None = None, **_: Any
    ) -> tuple[int | None, bytes, bytes]:
        self.pass_time()
        words, fault = [Path(argv[0]).name, *argv[1:]], self.fault
        if cancel is not None and cancel():
            fault = self.draw.choice(("hangs", "hangs, is done"))
        self.submitted += words[0] == "sbatch"
        if fault in ("lost request", "late", "hangs"):
            if fault == "late":
                self.late.append((self.tick + self.draw.randrange(1, 6), words))
            return (None if fault == "hangs" else 1), b"", b"Socket timed out on send/recv operation"
        status, output, errors = self.do(words)
        if fault == "lost answer":
            return 1, b"", b"Zero Bytes were transmitted or received"
        if fault:
            return {"hangs, is done": None, "killed": -9, "silent": 0}[fault], b"", b""
        return status, output.encode(), errors.encode()

    def pass_time(self) -> None:
        self.tick += 1
        if self.tick in self.presses:
            self.runtime.cancel.set()
        if self.tick > 400:
            self.runtime.detach.set()
        due = [words for tick, words in self.late if tick <= self.tick]
        self.late = [it for it in self.late if it[0] > self.tick]
        for words in due:
            self.do(words)
        for it in self.jobs.values():
            if it.state == "PENDING" and self.tick >= it.begins:
                it.state = "RUNNING"
                if it.shared:
                    (it.script.parent / "run.json").write_text("{}")
            if it.state == "RUNNING" and self.tick >= it.ends:
                it.end("COMPLETED" if it.code == 0 else "FAILED", it.code)

    def do(self, words: list[str]) -> tuple[int, str, str]:
        command, *rest = words
        known = {} if self.forgets else self.jobs
        number = next((int(it) for it in reversed(re.findall(r"\b[0-9]+\b", " ".join(rest))) if int(it) in known), 0)
        if command == "sbatch":
            if self.refuses:
                return 1, "", "sbatch: error: Batch job submission failed: Invalid account specified"
            folder = RunFolder(Path(rest[-1]).parent)
            assert folder.hold(), "the job can claim its run at once"
            folder.release()
            assert list(events_of(folder.path, Submitted)), "who attaches knows of the job at any moment"
            begins = self.tick + self.draw.randrange(12)
            new = Job(
                1000 + len(self.jobs),
                Path(rest[-1]),
                begins,
                begins + self.draw.randrange(1, 15),
                self.draw.choice(CODES),
                self.draw.random() < 0.7,
            )
            self.jobs[new.number] = new
            return 0, f"{new.number}\n", ""
        if command == "squeue" and "--me" in rest:
            return 0, "".join(f"{it.number}|{it.script}\n" for it in known.values()), ""
        if command == "sacct":
            return 1, "", "Slurm accounting storage is disabled"
        if not number:
            return 1, "", f"{command}: error: Invalid job id specified"
        found = known[number]
        if command == "squeue":
            return 0, f"{number}|{found.state}|N/A|{found.script}|None\n", ""
        if command == "scontrol":
            line = f"JobId={number} UserId=me({os.getuid()}) JobState={found.state} ExitCode={found.code}:0"
            return 0, f"{line} Command={found.script} StdOut={found.script}.out \n", ""
        if found.state not in ("PENDING", "RUNNING"):
            return 1, "", "scancel: error: Kill job error on job id 1: Job/step already completing or completed"
        if "--signal=INT" in rest:
            if found.state == "RUNNING":
                found.end("FAILED", 130)
        else:
            found.end("CANCELLED", 130)
        return 0, "", ""


def plan_of(runs: Path) -> RequestPlan[Submit]:
    return submit.plan_of(Submit(on="slurm", runs_dir=runs, name="t", command=["t.py"]))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, values in {
        queue: {"SOUGHT_SECONDS": 0.02, "PAUSE_SECONDS": 0.0005},
        watch: {"BRING_SECONDS": 0.01, "SOON_SECONDS": 0.0},
        reader: {"POLL_SECONDS": 0.0005},
        job: {"SOON_SECONDS": 0.0},
    }.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(queue.SlurmQueue, "poll", (0.0, 0.0))


def is_true(code: int, it: Job, model: Model) -> bool:
    """Is true where a run's exit code is that of its job, or 1 where none can be read."""
    codes = (it.code, 1) if it.state == "FAILED" and model.missed else (it.code,)
    return it.state in ("COMPLETED", "FAILED", "CANCELLED") and code in codes


@pytest.mark.parametrize("seed", range(CASES))
def test_a_submission(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, runtime, said = random.Random(seed), Runtime(LocalTransport()), list[Any]()
    runtime.emit = said.append
    presses = sorted(draw.sample(range(1, 40), draw.choice((0, 0, 1, 2, 4))))
    model = Model(draw, draw.choice((0.0, 0.2, 0.5, 0.8)), runtime, presses, draw.random() < 0.15)
    monkeypatch.setattr(slurm, "finish", model.finish)
    monkeypatch.setattr(slurm.shutil, "which", model.which)
    plan, report, refused = plan_of(tmp_path / "runs"), None, False
    try:
        report = submit.run(plan, runtime)
    except UsageError:
        refused = True
    except ConnectError as error:
        assert error.hint and plan.run_id in error.hint
    assert model.submitted <= 1 and len(model.jobs) + len(model.late) <= 1 + len(model.late)
    folder = tmp_path / "runs" / plan.run_id
    assert not (refused and (model.jobs or model.late)), "a late answer is not a refusal"
    assert folder.exists() is not refused
    if report is not None and not isinstance(report.answer, LeftAlone):
        (known,) = model.jobs.values()
        end = report.read(RunSummary).end
        assert is_true(report.exit_code, known, model) if end else report.exit_code == 122, (report, known)
    elif report is not None:
        assert runtime.cancel.count >= watch.LEAVE or runtime.detach.is_set()
    model.faulty, model.presses = 0.0, ()
    if refused:
        return
    for _ in range(40):  # what is under way comes to its end
        model.pass_time()
    found = job.job_of(plan.run_id, tmp_path / "runs")
    assert found is not None if model.jobs else found is None, "a job that nobody knows of"
    for model.forgets in (False, True):
        if model.forgets and found is not None:  # who attaches puts it on record, and it stays
            runtime = Runtime(LocalTransport())
            model.forgets = False
            watch.watch(watch.watch_of(tmp_path / "runs", *found, detach=False), runtime)
            model.forgets = True
        (shown,) = job.with_jobs(local.local_runs(tmp_path / "runs"))
        if model.jobs:
            (known,) = model.jobs.values()
            assert shown.exit_code is not None and is_true(shown.exit_code, known, model), (shown, known)
        else:
            assert shown.state == "open"


def test_faults_are_drawn() -> None:
    """All of them, and each outcome."""
    drawn = random.Random(1)
    assert {drawn.choice(FAULTS) for _ in range(100)} == set(FAULTS)
