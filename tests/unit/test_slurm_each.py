"""`fleet launch --on slurm --each FILE`: a run a line, one request to the queue."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from fleet.cli.main import run
from fleet.errors import Interrupted
from fleet.ops.run.plan.options import read_lines
from fleet.ops.run.submit import submit
from fleet.ops.run.submit.submit import plan_of
from fleet.protocol.state import is_run_id
from fleet.requests.submit import Submit, of_line
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests import stubs

LINES = "--lr 0.1  # the usual\n\n# others\n--lr 0.01 --name 'a b'\n--lr $HOME\n"
LAUNCH = ["launch", "--on", "slurm", "--nodes", "2", "--each", "lines.txt"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script and its lines. sbatch keeps what it is given, and gives number 17."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "lines.txt").write_text(LINES)
    (tmp_path / "train.py").write_text("")
    submitted = f"for last; do :; done; printf '%s\\n' \"$@\" >{tmp_path}/argv; cp $last {tmp_path}/given; echo 17"
    listing = f"""for n in 1 2 3; do grep -qs $n {tmp_path}/gone && state=CANCELLED || state=PENDING
        case "$*" in *--me*) echo "17|$(cat {tmp_path}/command)";;
        *) echo "17_$n|$state|N/A|$(cat {tmp_path}/command)|None";; esac; done"""
    shown = f'echo "JobId=20 ArrayJobId=17 UserId=me({os.getuid()}) Command=$(cat {tmp_path}/command) x"'
    cancel = f"for last; do :; done; echo $last | cut -d_ -f2 >>{tmp_path}/gone"
    stubs.put(tmp_path, {"sbatch": submitted, "squeue": listing, "scontrol": shown, "scancel": cancel}, monkeypatch)
    return tmp_path


def requested(here: Path, *more: str) -> list[Path]:
    """The folders of the runs, by line, once they are requested."""
    assert run([*LAUNCH, *more, "train.py", "--epochs", "3"]) == 0
    folders = sorted(path for path in (here / "runs").iterdir() if path.is_dir() and not path.is_symlink())
    (here / "command").write_text(str(folders[0] / "job.sh"))
    return folders


def test_a_run_a_line_and_one_request(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = requested(here)
    assert [path.name[:8] for path in folders] == ["train-1-", "train-2-", "train-3-"]
    assert len({path.name[8:] for path in folders}) == 1
    events = [[json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()] for path in folders]
    assert [[it["job"] for it in each if it["event"] == "submitted"] for each in events] == [
        ["", "17_1"],
        ["", "17_2"],
        ["", "17_3"],
    ]
    text = (here / "given").read_text()
    assert "#SBATCH --array=1-3\n" in text and text == (folders[2] / "job.sh").read_text()
    output = str(folders[0] / "job.out").replace("train-1-", "train-%a-")
    assert f"--output={output}" in (here / "argv").read_text().splitlines()
    shown = capsys.readouterr().err
    assert "are job 17 of Slurm, a task a line" in shown and "'scancel 17' ends all of them" in shown
    assert "3 runs go on by themselves" in shown and "'fleet stop RUN' ends one" in shown
    assert {(path / "job.sh").stat().st_ino for path in folders} == {(folders[0] / "job.sh").stat().st_ino}
    assert run(["runs"]) == 0
    assert capsys.readouterr().out.count(" queued ") == 3
    assert os.readlink(here / "runs/latest") == folders[0].name, "what was requested last"


def test_each_task_has_the_arguments_of_its_line(here: Path) -> None:
    folders = requested(here, "--env", "SECRET_KEY=abc")
    printed = """ exec bash -c 'echo $FLEET_CLAIMS; printf "<%s>" "$@"' bash /"""
    text = (here / "given").read_text().replace(" exec /", printed)
    assert "abc" not in text
    for line, words in enumerate((["--lr", "0.1"], ["--lr", "0.01", "--name", "a b"], ["--lr", "$HOME"])):
        environ = {**os.environ, "SLURM_ARRAY_TASK_ID": str(line + 1)}
        done = subprocess.run(["bash", "-c", text], env=environ, capture_output=True, text=True, check=True)
        claims, _, argv = done.stdout.partition("\n")
        assert claims == folders[line].name
        assert argv.endswith("".join(f"<{it}>" for it in ["train.py", "--epochs", "3", *words]))
        variables = Path(argv.split("<--env-file=")[1].split(">")[0])
        assert (here / variables).read_text().split() == ['SECRET_KEY="abc"'] and variables.parent.name == claims


def test_a_hash_within_a_word_begins_no_comment(tmp_path: Path) -> None:
    (tmp_path / "l").write_text('--name exp#3 --lr 0.1\n\'a # b\' # c\na\\ #b c\n  # d\n"e\\" # f"#g h #i\n')
    assert read_lines(tmp_path / "l", "t.py") == [
        ["--name", "exp#3", "--lr", "0.1"],
        ["a # b"],
        ["a #b", "c"],
        ['e" # f#g', "h"],
    ]


def test_any_name_gives_ids_of_runs() -> None:
    draw = random.Random(1)
    names = [
        "训练.py",
        "训练",
        "-",
        "...",
        "a" * 99,
        f"{'a' * 39}-b",
        *("".join(draw.choices("a训-._1 ", k=9)) for _ in range(99)),
    ]
    for name in names:
        ask = Submit(on="slurm", name=name, command=["t.py"], each=[["a"]] * 3)
        plan = plan_of(ask)
        assert all(is_run_id(of_line(plan.run_id, line)) for line in (1, 3, 99999)), name


def test_json_has_each_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", *LAUNCH, "train.py"]) == 0
    events = map(json.loads, capsys.readouterr().out.splitlines())
    assert [it["job"] for it in events if it.get("event") == "submitted"] == ["17_1", "17_2", "17_3"]


def test_an_interrupt_before_the_request_leaves_no_run(here: Path) -> None:
    plan = plan_of(Submit(on="slurm", name="t", command=["t.py"], each=[["a"]] * 3, runs_dir=here / "runs"))
    runtime = Runtime(LocalTransport())
    runtime.cancel.set()
    with pytest.raises(Interrupted):
        submit.run(plan, runtime)
    assert not (here / "argv").exists() and not [*here.glob("runs/t-*")]


def test_each_run_is_ended_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, second, _ = requested(here)
    assert run(["stop", "train-2"]) == 0 and (here / "gone").read_text() == "2\n"
    assert "job 17_2 is out of the queue" in capsys.readouterr().out
    assert json.loads((second / "summary.json").read_text())["exit_code"] == 130
    assert run(["runs"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(" queued ") == 2 and shown.count(" stopped ") == 1


def test_a_job_that_sbatch_has_not_confirmed_is_found_by_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stubs.put(
        here, {"sbatch": "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1"}, monkeypatch
    )
    monkeypatch.setattr("fleet.sources.slurm.queue.SOUGHT_SECONDS", 0.0)
    (here / "command").write_text("another")
    assert run([*LAUNCH, "train.py"]) == 122
    folders = sorted(path for path in (here / "runs").iterdir() if not path.is_symlink() and path.is_dir())
    assert len(folders) == 3
    (here / "command").write_text(str(folders[0] / "job.sh"))
    assert run(["stop", folders[2].name]) == 0 and (here / "gone").read_text() == "3\n"
    assert "job 17_3 is out of the queue" in capsys.readouterr().out


def test_what_is_refused_leaves_no_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = "echo 'sbatch: error: Batch job submission failed: Invalid job array specification' >&2; exit 1"
    stubs.put(here, {"sbatch": refused}, monkeypatch)
    assert run([*LAUNCH, "train.py"]) == 2 and "Invalid job array specification" in capsys.readouterr().err
    assert [path for path in (here / "runs").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("text", "more", "code", "word"),
    [
        ("# none\n", ["train.py"], 2, "--each lines.txt: it has no line"),
        ("--a 'b\n", ["train.py"], 2, "lines.txt:1: No closing quotation"),
        ("# a\n\n--lr 1\n--api-key 'b c'\n", ["train.py"], 2, "lines.txt:4: --api-key ***: a script must not hold"),
        ("--a\n", ["--single-node-jobs", "train.py"], 2, "--single-node-jobs"),
        ("--a\n", ["--array=1-3", "train.py"], 2, "a run is one job"),
        (None, ["train.py"], 2, "--each lines.txt: it cannot be read"),
    ],
)
def test_what_is_no_line(
    text: str | None, more: list[str], code: int, word: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "lines.txt").unlink()
    if text is not None:
        (here / "lines.txt").write_text(text)
    assert run([*LAUNCH, *more]) == code and word in capsys.readouterr().err
