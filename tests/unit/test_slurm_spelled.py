"""Lines of `fleet launch --on slurm`, drawn: options of sbatch's in each spelling, among fleet's own, before a script
with arguments of its own. Each is in the batch script once, and the script's arguments are as they were typed."""

from __future__ import annotations

import os
import random
import re
import shlex
from pathlib import Path

import pytest

from fleet.cli.main import run
from fleet.engines.launchers import REFUSED_IN_JOBS
from fleet.engines.translate import Known, options_of
from fleet.sources.slurm.script import quoted, stated

CASES = int(os.environ.get("FLEET_FUZZ", "8")) * 5
TABLE = options_of("sbatch")
NAMES = sorted(name for name in TABLE if len(name) > 1)
SHORT = {known.name: name for name, known in TABLE.items() if len(name) == 1}
# letters of fleet's own, and options whose values mean more to fleet than their text
LETTERS = set("imqvwxh")
OTHERWISE = {"nodes", "nodelist", "exclude", "ntasks-per-node", "cpus-per-task", "open-mode", "job-name"}
OTHERWISE |= {"quiet", "verbose", "container"}
DRAWN = [name for name in NAMES if name not in REFUSED_IN_JOBS.keys() | OTHERWISE]
VALUES = ("2", "gpu:8", "my run", "now + 1hour", "a=b", 'say "x" # y', "a,b", "-1", "ü")
OURS = (
    ["-q"],
    ["-v"],
    ["-vq"],
    ["-vvq"],
    ["--quiet"],
    ["--name", "x"],
    ["--engine=torchrun"],
    ["--env", "A=b c"],
    ["--sync"],
    ["--nproc_per_node", "2"],
    ["-qv", "--clean-env"],
)
ARGUMENTS = ("--on", "slurm", "-N2", "--", "-vq", "--time=3", "--on=env", "-x.py", "a b", "--sbatch-arg=--array=3", "-")


def spellings(known: Known, value: str) -> list[list[str]]:
    """Returns the ways to type an option of sbatch's."""
    name, short = known.name, SHORT.get(known.name, "")
    begun = [name[:end] for end in range(2, len(name) + 1)]
    whole = [it for it in begun if it == name or sum(other.startswith(it) for other in NAMES) == 1]
    found = list[list[str]]()
    for it in whole:
        if known.takes == "=":
            found += [[f"--{it}={value}"], [f"--{it}", value], [f"--sbatch-arg=--{it}={value}"]]
        else:
            found += [[f"--{it}={value}" if value else f"--{it}"]]
    if short and short not in LETTERS and (value or not known.takes):
        found += [[f"-{short}{value}"], [f"-{short}", value]] if known.takes == "=" else [[f"-{short}"]]
        found += [[f"-v{short}{value}"]] if known.takes == "=" else [[f"-v{short}q"]]
    return found


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [it for it in os.environ if it.startswith(("SLURM", "SBATCH", "FLEET_"))]:
        monkeypatch.delenv(name)


def planned(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = run(["--dry-run", "launch", *words])
    shown = capsys.readouterr()
    assert code == 0, (words, shown.err)
    return shown.out


@pytest.mark.parametrize("seed", range(CASES))
def test_a_drawn_line(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(seed)
    words, expected = [draw.choice((["--on", "slurm"], ["--on=slurm"]))], dict[str, str]()
    for name in draw.sample(DRAWN, draw.randint(1, 6)):
        value = draw.choice({"=": VALUES, "=?": ("", "3"), "": ("",)}[TABLE[name].takes])
        words.append(draw.choice(spellings(TABLE[name], value)))
        expected[name] = quoted(value) if value else ""
    words += draw.sample(OURS, draw.randint(0, 3))
    draw.shuffle(words)
    script, args = draw.choice(("train.py", "run.sh", "sub/a b.py")), draw.choices(ARGUMENTS, k=draw.randint(0, 5))
    line = [*(it for option in words for it in option), *draw.choice(([], ["--"])), script, *args]
    text = planned(line, capsys)
    for name, value in expected.items():
        assert len(re.findall(rf"^#SBATCH --{name}(?:=|$)", text, re.M)) == 1, (line, name)
        assert stated(text)[name] == value, (line, name)
    command = shlex.split(text.splitlines()[-1].partition(" ")[2])
    at = command.index(script)
    assert command[at + 1 :] == args, line
    known = {*expected, "job-name", "nodes", "open-mode", "ntasks-per-node"}
    assert stated(text).keys() == known, line


@pytest.mark.parametrize("args", [["--on", "slurm"], ["--on=slurm"], ["x", "--on", "slurm", "-N2"]])
def test_words_behind_the_script_select_no_queue(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("hostfile").write_text("gpu1 slots=1\n")
    text = planned(["-vq", "train.py", *args], capsys)
    assert "#SBATCH" not in text and f"python3 -u train.py {shlex.join(args)}" in text


def test_a_script_with_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    text = planned(["--on", "slurm", "-N2", "--", "-x.py", "-N3", "--", "a"], capsys)
    assert stated(text)["nodes"] == "2" and text.splitlines()[-1].endswith("-x.py -N3 -- a")


@pytest.mark.parametrize(
    "words, why",
    [
        ("-qtest", "-qtest: -q is fleet's own, and has no value"),
        ("-qN2", "-qN2: -q is fleet's own, and has no value"),
        ("-vmblock", "-mblock: -m is fleet's own, and has no value"),
        ("-vn2", "fleet starts one task a node"),
        ("-v2", "-2"),
        ("--verbose=2", "--verbose has no value"),
        ("--on slurm --contiguous=1", "--contiguous has no value"),
    ],
)
def test_what_is_refused_by_name(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--dry-run", "launch", "--on", "slurm", *words.split(), "train.py"]) == 2
    assert why in capsys.readouterr().err


def test_an_option_that_is_typed_twice_is_stated_once(capsys: pytest.CaptureFixture[str]) -> None:
    line = "-N2 -N3 --comment a --comm=b --requeue 3 --requeue --open-mode=truncate --exclusive --exclusive=user t.py"
    text = planned(["--on", "slurm", *line.split()], capsys)
    options = re.findall("^#SBATCH --([^=\n]+)", text, re.M)
    assert sorted(options) == sorted({*options}), text
    assert {"nodes": "3", "comment": "b", "open-mode": "truncate", "exclusive": "user"}.items() < stated(text).items()


def test_ntasks_per_node_means_the_same_however_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ("--ntasks-per-node 8", "--sbatch-arg=--ntasks-per-node=8", "--sbatch-arg --ntasks-per-n=8")
    scripts = {re.sub(r"FLEET_CLAIMS=\S+", "", planned(["--on", "slurm", *it.split(), "t.py"], capsys)) for it in typed}
    assert len(scripts) == 1 and "--nproc-per-node=8" in scripts.pop()
    both = ["--on", "slurm", "--sbatch-arg=--ntasks-per-node 8", "--sbatch-arg=-n 3", "t.py"]
    assert run(["--dry-run", "launch", *both]) == 2 and "--sbatch-arg=-n 3: fleet starts" in capsys.readouterr().err
