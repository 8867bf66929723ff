"""What a newcomer types in the first hour, and what fleet says to it: the true cause, and a line that works."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.line import hints
from fleet.cli.line.line import Line, running
from fleet.cli.verbs.exec import other_command
from fleet.errors import PreflightError
from tests.hostile import hostile
from tests.in_process import fleet_here
from tests.in_process import typed as run


@pytest.mark.parametrize("key", ["workdir", "python"])
@pytest.mark.parametrize("home", ["$HOME", "${HOME}"])
def test_a_variable_makes_no_folder_of_its_name(
    key: str, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(f"hosts: {{a: {{{key}: '{home}/x'}}}}")
    assert run(["hosts"]) == 121
    said = capsys.readouterr().err
    assert "variables are not expanded" in said and "hint: write ~/x\n" in said
    Path("fleet.yaml").unlink()
    Path("hostfile").write_text("a\n")
    assert run(["launch", f"--{key}", f"{home}/x", "t.py"]) == 2
    assert f"--{key} {home}/x: variables are not expanded\n  hint: write ~/x\n" in capsys.readouterr().err


# -- a script that is nowhere -----------------------------------------------------------------------------------
def missing(script: str, here: Path, **options: Any) -> tuple[str, str]:
    """What preflight says of a script that no host has."""
    facts = {"script": {"path": f"/w/{script}", "exists": False, "sha256": None, "executable": False}}
    with pytest.raises(PreflightError) as refused:
        hostile({"clock": 1.0}, {"facts": facts}).plan.launch(script, folder=here, **options).run()
    (found,) = (finding for finding in refused.value.findings if finding["id"] == "script-missing")
    return found["message"], found["remedy"]


@pytest.mark.parametrize(
    ("script", "remedy"),
    [
        ("trian.py", "it is not here either, did you mean train.py?"),
        ("src/modle.py", "it is not here either, did you mean src/model.py?"),
        ("nothing/of/it.py", "it is not below HERE either"),
        ("HERE/train.py", "that is a path of this machine; name it from HERE on: train.py"),
        ("/etc/passwd", "that is a path of this machine"),
        ("train.py", "fleet launch --sync"),
    ],
)
def test_a_missing_script_has_its_true_cause(
    script: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    for name in ("train.py", "src/model.py"):
        (tmp_path / name).write_text("")
    here = str(tmp_path)
    assert remedy.replace("HERE", here) in missing(script.replace("HERE", here), tmp_path)[1]


def test_a_missing_program_is_no_script(tmp_path: Path) -> None:
    assert missing("python", tmp_path, engine="command") == (
        "gpu1: no program python on the PATH, nor in the workdir",
        "name python3, or an interpreter by its path",
    )


@pytest.mark.parametrize(
    ("script", "args", "name"),
    [
        ("python3", ("-u", "train.py", "--lr", "1"), "train"),
        ("bash", ("jobs/sft.sh", "8"), "sft"),
        ("python", ("-m", "pkg.train"), "pkg"),
        ("./train", ("x.py",), "train"),
        ("python3", (), "python3"),
    ],
)
def test_a_run_is_called_by_what_runs(script: str, args: tuple[str, ...], name: str, tmp_path: Path) -> None:
    plan = fleet_here("n1").plan.launch(script, args, engine="command", folder=tmp_path)
    assert plan.describe()["run"].rsplit("-", 3)[0] == name


# -- hints of a launch, and of exec -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("typed", "args", "hint", "printed"),
    [
        (
            "fleet -i lab launch --sync t.py --lr 1",
            3,
            "'fleet launch --sync --force' replaces it",
            "'fleet -i lab launch --sync --force t.py --lr 1' replaces it",
        ),
        (
            "fleet launch --env API_KEY=abc -m pkg",
            1,
            "stop it; 'fleet launch --share' starts alongside it",
            "stop it; 'fleet launch --env \"API_KEY=***\" -m --share pkg' starts alongside it",
        ),
        ("fleet launch -- t.py", 1, "fleet launch --share", "fleet launch --share -- t.py"),
        ("fleet launch --again latest", 0, "fleet launch --sync", "fleet launch --again latest --sync"),
    ],
)
def test_a_hint_of_a_launch_has_its_script(typed: str, args: int, hint: str, printed: str) -> None:
    words = typed.split()
    with running(Line(tuple(words))):
        hints.launching(words[len(words) - args :])
        assert hints.as_typed(hint) == printed
    assert hints.as_typed("'fleet launch --sync' brings it") == "'fleet launch --sync SCRIPT' brings it"


@pytest.mark.parametrize(
    ("argv", "statuses", "meant"),
    [
        (["gpu1", "hostname"], {127}, "fleet exec -w gpu1 -- hostname"),
        (["ls", "work/*.py"], {2}, "no shell reads the words: fleet exec --shell 'ls work/*.py'"),
        (["ls", "work/*.py"], {0}, None),
        (["ls", "a b", "|", "wc"], {0}, "no shell reads |: fleet exec --shell 'ls '\"'\"'a b'\"'\"' | wc'"),
        (["grep", "-E", "a.*b", "f"], {1}, None),
        (["find", "/x", "-exec", "ls", "{}", ";"], {0}, None),
        (["grep", "|", "f"], {0}, None),
        (
            ["torchrun", "x"],
            {127},
            "'fleet exec --env-of python -- torchrun x' also looks next to the training interpreter",
        ),
        (["nosuch"], {127}, None),
        (["true"], {0}, None),
    ],
)
def test_what_exec_was_meant_to_do(argv: list[str], statuses: Collection[int | None], meant: str | None) -> None:
    hosts = fleet_here("gpu1", "gpu2").inventory
    assert other_command(argv, None, statuses, {host.name: host for host in hosts.hosts}) == meant


def test_an_option_behind_the_script_is_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hostfile").write_text("a\n")
    assert run(["launch", "--dry-run", "t.py", "--nproc_per_node", "2", "--lr", "1"]) == 0
    assert "--nproc_per_node comes after the script, so it is passed to the script" in capsys.readouterr().err
    assert run(["launch", "--dry-run", "t.py", "--name", "x"]) == 0
    assert capsys.readouterr().err.count("after the script") == 0
