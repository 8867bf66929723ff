"""What a newcomer types in the first hour, and what fleet says to it: the true cause, and a line that works."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.cli.line import hints
from fleet.cli.main import run
from fleet.cli.verbs.exec import other_command
from fleet.errors import InventoryError
from fleet.inventory.find import parse
from fleet.inventory.yaml_file import parse_yaml
from fleet.model import Host
from fleet.ops.init.sources import read
from fleet.ops.run.plan.findings import findings
from fleet.ops.run.plan.plan import Plan, plan_of
from fleet.requests.launch import Launch
from fleet.rules.launch import SYNC
from tests.unit.test_launch_findings import HOSTS, good, plan_for

INI = """\
node1 ansible_host=10.0.0.1 ansible_user=me
[gpu]
node[2:3] ansible_ssh_port=33  # old spelling
[gpu:vars]
ansible_user = root
ansible_python_interpreter={{ where }}
[train:children]
gpu
[train:vars]
ansible_ssh_private_key_file=~/k
[all:children]
train
[here]
localhost ansible_connection=local
"""
YAML = """\
all:
  vars: {ansible_user: me}
  children:
    gpu:
      hosts:
        node1: {ansible_host: 10.0.0.1}
        node2:
      vars: {ansible_port: 33}
"""


NODE2 = Host("node2", "node2", user="root", port=33, identity_file="~/k")


# -- inventories ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "name", "first", "second"),
    [
        (INI, "inventory.ini", Host("node1", "10.0.0.1", user="me"), NODE2),
        (YAML, "site.yml", Host("node1", "10.0.0.1", user="me", port=33), Host("node2", "node2", user="me", port=33)),
    ],
)
def test_an_inventory_of_ansibles_is_called_one_and_read_by_init(
    text: str, name: str, first: Host, second: Host, tmp_path: Path
) -> None:
    with pytest.raises(InventoryError, match="is an inventory of ansible's") as caught:
        parse(text.encode(), name)
    assert caught.value.hint == f"fleet -i fleet.yaml init {name}"
    given = read(text.encode(), name, None, tmp_path)
    assert "localhost" not in given.inventory.names
    assert given.inventory.hosts[:2] == (first, second) and "ansible" in given.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "all: &a\n  children: {x: *a}\n  hosts: {h: {ansible_port: 1}}\n",
        "all:\n  hosts: [gpu1]\n",
        "[a:vars]\n[a]\ngpu1 x 'y\n",
    ],
)
def test_what_is_not_understood_of_one_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="not understood"):
        read(text.encode(), "site.yml", None, tmp_path)


def test_what_is_no_ansible_inventory_keeps_its_own_error() -> None:
    with pytest.raises(InventoryError, match="unknown key 'slot'"):
        parse(b"gpu1 slot=3\n", "hostfile")


@pytest.mark.parametrize("key", ["workdir", "python"])
@pytest.mark.parametrize("home", ["$HOME", "${HOME}"])
def test_a_variable_makes_no_folder_of_its_name(
    key: str, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InventoryError, match="variables are not expanded") as caught:
        parse_yaml(f"hosts: {{a: {{{key}: '{home}/x'}}}}", "fleet.yaml")
    assert caught.value.hint == "write ~/x"
    monkeypatch.chdir(tmp_path)
    Path("hostfile").write_text("a\n")
    assert run(["launch", f"--{key}", f"{home}/x", "t.py"]) == 2
    assert f"--{key} {home}/x: variables are not expanded\n  hint: write ~/x\n" in capsys.readouterr().err


# -- a script that is nowhere -----------------------------------------------------------------------------------
def missing(plan: Plan) -> tuple[str, str | None]:
    script = {"path": "/w/" + plan.job.script, "exists": False, "sha256": None, "executable": False}
    (found,) = findings(plan, {host.name: good(script=script) for host in plan.hosts})
    return found.message, found.remedy


@pytest.mark.parametrize(
    ("script", "remedy"),
    [
        ("trian.py", "it is not here either, did you mean train.py?"),
        ("src/modle.py", "it is not here either, did you mean src/model.py?"),
        ("nothing/of/it.py", "it is not below HERE either"),
        ("HERE/train.py", "that is a path of this machine; name it from HERE on: train.py"),
        ("/etc/passwd", "that is a path of this machine"),
        ("train.py", SYNC),
    ],
)
def test_a_missing_script_has_its_true_cause(
    script: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    for name in ("train.py", "src/model.py"):
        (tmp_path / name).write_text("")
    plan = plan_for()
    here = str(tmp_path)
    request = replace(plan.request, script=script.replace("HERE", here), folder=here)
    plan = replace(plan, request=request, job=replace(plan.job, script=request.script))
    assert missing(plan)[1] == remedy.replace("HERE", here)


def test_a_missing_program_is_no_script() -> None:
    plan = plan_for("command")
    plan = replace(plan, job=replace(plan.job, script="python"))
    assert missing(plan) == (
        "n[0-2]: no program python on the PATH, nor in the workdir",
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
    from fleet.model import Inventory

    plan = plan_of(Inventory(HOSTS), Launch(script, args, engine="command", folder=tmp_path))
    assert plan.run_id.rsplit("-", 3)[0] == name


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
            "stop it; 'fleet launch --share' starts beside it",
            "stop it; 'fleet launch --env \"API_KEY=***\" -m --share pkg' starts beside it",
        ),
        ("fleet launch -- t.py", 1, "fleet launch --share", "fleet launch --share -- t.py"),
        ("fleet launch --again latest", 0, "fleet launch --sync", "fleet launch --again latest --sync"),
    ],
)
def test_a_hint_of_a_launch_has_its_script(typed: str, args: int, hint: str, printed: str) -> None:
    words = typed.split()
    with hints.of_line():
        hints.launching(words, words[len(words) - args :])
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
            "'fleet exec --env-of python -- torchrun x' looks beside the training interpreter, too",
        ),
        (["nosuch"], {127}, None),
        (["true"], {0}, None),
    ],
)
def test_what_exec_was_meant_to_do(argv: list[str], statuses: Collection[int | None], meant: str | None) -> None:
    hosts = {name: Host(name, name) for name in ("gpu1", "gpu2")}
    assert other_command(argv, None, statuses, hosts) == meant


def test_an_option_behind_the_script_is_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hostfile").write_text("a\n")
    assert run(["launch", "--dry-run", "t.py", "--nproc_per_node", "2", "--lr", "1"]) == 0
    assert "--nproc_per_node stands behind the script, so the script is given it" in capsys.readouterr().err
    assert run(["launch", "--dry-run", "t.py", "--name", "x"]) == 0
    assert capsys.readouterr().err.count("behind the script") == 0
