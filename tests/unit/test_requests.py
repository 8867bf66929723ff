"""fleet/requests: what a verb is asked for is checked where it is made, in the same way for every door."""

from __future__ import annotations

import dataclasses
import inspect
import math
from pathlib import Path
from typing import Any

import click
import pytest

import fleet
from fleet.cli.main import cli, run
from fleet.errors import UsageError
from fleet.requests.launch import Launch
from fleet.requests.request import OptionError
from tests.in_process import fleet_here

REFUSED: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"lease": -5}, "lease -5: must be a number, 1 or more", ["--lease", "-5"]),
    ({"lease": "long"}, "lease 'long': must be a number, 1 or more", ["--lease", "long"]),
    ({"node_timeout": math.nan}, "node_timeout nan: must be a number, 1 or more", ["--node-timeout", "nan"]),
    ({"stall_timeout": math.inf}, "stall_timeout inf: must be a number, 1 or more", ["--stall-timeout", "inf"]),
    ({"grace": -0.5}, "grace -0.5: must be a number, 0 or more", ["--grace", "-0.5"]),
    ({"max_restarts": -3}, "max_restarts -3: must be a whole number, 0 or more", ["--max-restarts", "-3"]),
    ({"spares": -1}, "spares -1: must be a whole number, 0 or more", ["--spares", "-1"]),
    ({"nnodes": "4:2"}, "nnodes 4:2: not a number of nodes", ["--nnodes", "4:2"]),
    ({"nproc_per_node": 0}, "nproc_per_node 0: not a number of ranks", ["--nproc-per-node", "0"]),
    ({"force": True}, "force has a meaning with --sync or --wheels only", ["--force"]),
    ({"master_port": 70000}, "master_port 70000: must be a whole number from 0 to 65535", []),
    ({"max_restarts": 1.5}, "max_restarts 1.5: must be a whole number, 0 or more", []),
    ({"keep_env": ["A"]}, "keep_env has a meaning with --clean-env only", ["--keep-env", "A"]),
    ({"max_restarts": True}, "max_restarts True: must be a whole number, 0 or more", []),
    ({"args": "--lr 1"}, "args '--lr 1': must be a list of texts", []),
    ({"args": [1]}, "args [1]: must be a list of texts", []),
    ({"engine_args": "--x"}, "engine_args '--x': must be a list of texts", []),
    ({"env": {"A": 1}}, "env must be a mapping of texts to texts ('A' is int)", []),
    ({"env": ["A=1"]}, "env ['A=1']: must be a mapping", []),
    ({"env": {"A=B": "x"}}, "env: not a variable name in front of '='", []),
    ({"env": {"A": "x\0"}}, "A: a value cannot hold a NUL byte", []),
    (
        {"env_expand": {"FLEET_RUN_ID": "x"}},
        "env_expand FLEET_RUN_ID: names that begin with FLEET_ are fleet's own",
        [],
    ),
    ({"sync": "yes"}, "sync 'yes': must be true or false", []),
    ({"engine": 7}, "engine 7: must be a text", []),
    ({"runs_dir": 7}, "runs_dir 7: must be a text or a path", []),
]


def refuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str, args: tuple[Any, ...], given: dict[str, Any], words: str
) -> None:
    """A program is refused in these words."""
    monkeypatch.chdir(folder)
    (folder / "hostfile").write_text("a\n")
    with pytest.raises(UsageError) as raised:
        getattr(fleet.open().plan, verb)(*args, **given)
    assert str(raised.value) == words


@pytest.mark.parametrize("given, refused, typed", REFUSED, ids=lambda it: str(it) if isinstance(it, dict) else "")
def test_what_no_launch_can_have(
    given: dict[str, Any],
    refused: str,
    typed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """By the program and by the command line in the same words, before any host is asked."""
    refuses(tmp_path, monkeypatch, "launch", ("t.py",), given, refused)
    if typed:
        code, error = run(["launch", *typed, "t.py"]), capfd.readouterr().err
        name = refused.split()[0]
        assert code == 2 and f"error: {refused.replace(name, typed[0], 1)}" in error, error


OTHERS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, list[str]]] = [
    ("exec", (["true"],), {"timeout": 0}, "timeout 0: must be a number, more than 0", ["--timeout", "0", "true"]),
    ("exec", (["true"],), {"timeout": math.nan}, "timeout nan: must be a number, more than 0", []),
    ("exec", ("true",), {}, "argv 'true': must be a list of texts", []),
    ("exec", (), {}, "give either a command after '--' or --shell LINE", []),
    ("exec", ([""],), {}, "the command is empty", [""]),
    ("exec", (["true"],), {"env_of": "perl"}, "env_of 'perl': must be 'python'", []),
    ("sync", ("",), {}, "SRC is empty", [""]),
    ("sync", (".",), {"to": " "}, "to is empty", ["--to", " "]),
    ("sync", (), {"force": True, "keep": True}, "--force and --keep exclude each other", ["--force", "--keep"]),
    ("sync", (), {"force": "*.py"}, "force '*.py': must be true or false or a list of texts", []),
    ("sync_data", (), {}, "data names nothing", []),
    ("sync_wheels", ("w",), {"import_timeout": 0}, "import_timeout 0: must be a number from 1 to 3600", []),
    ("check", (), {"timeout": 0}, "timeout 0: must be a number from 0.1 to 600", ["--timeout", "0"]),
    ("kill_port", ([70000],), {}, "ports [70000]: must be a list, of which each is a whole number from 1 to 65535", []),
    ("kill_port", ("29500",), {}, "ports '29500': must be a list of whole numbers", []),
    ("kill_port", ([1],), {"grace": -1}, "grace -1: must be a number from 0 to 600", ["--grace", "-1", "1"]),
    ("setup_ssh", (), {"key_type": "dsa"}, "key_type 'dsa': must be 'ed25519' or 'rsa'", []),
    (
        "setup_ssh",
        (),
        {"undo": True, "tofu": True},
        "--undo removes what was added: it goes with neither --tofu, --replace-key, --key-type nor --no-mesh",
        ["--undo", "--tofu"],
    ),
    ("build", ("",), {}, "nothing is named", [""]),
    ("build", ("deepspeed",), {"env": {"A": 1}}, "env must be a mapping of texts to texts ('A' is int)", []),
    ("build", ("deepspeed",), {"env": {"A=B": "x"}}, "env: not a variable name in front of '='", []),
    ("stop", ("r",), {"grace": -1}, "grace -1: must be a number, 0 or more", ["r", "--grace", "-1"]),
    ("logs", (), {"tail": -1}, "tail -1: must be a whole number, 0 or more", ["--tail", "-1"]),
    ("logs", (), {"rank": [-1]}, "rank [-1]: must be a list, of which each is a whole number, 0 or more", []),
    ("stacks", (), {"rank": "0"}, "rank '0': must be a list of whole numbers", []),
    ("get", ("",), {}, "nothing is named", [""]),
    ("attach", (), {"detach": "yes"}, "detach 'yes': must be true or false", []),
    ("ps", (), {"every": True}, "ps takes no every", []),
]


@pytest.mark.parametrize("verb, args, given, refused, typed", OTHERS, ids=lambda it: str(it)[:40])
def test_what_no_other_verb_can_have(
    verb: str,
    args: tuple[Any, ...],
    given: dict[str, Any],
    refused: str,
    typed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    refuses(tmp_path, monkeypatch, verb, args, given, refused)
    if typed:
        code, error = run([verb.replace("_", "-"), *typed]), capfd.readouterr().err
        name = refused.split()[0]
        assert code == 2 and f"error: {refused.replace(name, '--' + name, 1) if name in given else refused}" in error


@pytest.mark.parametrize("given", [{"fanout": 0}, {"fanout": 2.5}, {"connect_timeout": math.nan}])
def test_how_hosts_are_reached_is_checked_too(given: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("a\n")
    with pytest.raises(UsageError, match=f"{next(iter(given))} .*: must be"):
        fleet.open(tmp_path / "hostfile", **given)


# verb -> field -> how the command line calls it, None: not at all; options of the command line alone
DOORS: dict[str, tuple[dict[str, str | None], set[str]]] = {
    "exec": ({"grace": None, "keep": None}, {"no_fold"}),
    "check": ({}, {"html"}),
    "kill-port": ({"agree": None}, {"yes"}),
    "setup-ssh": ({"password": None, "limit": None, "confirm": None, "ask_password": None}, set()),
    "build": ({}, set()),
    "attach": ({}, {"ranks", "no_fold"}),
    "stop": ({}, set()),
    "forget": ({}, set()),
    "ps": ({}, {"watch"}),
    "logs": ({}, {"no_fold"}),
    "stacks": ({}, {"all_threads"}),
    "get": ({}, {"sources"}),
}


def fields_of(method: str) -> dict[str, inspect.Parameter]:
    """The fields of a request, which the method has as its parameters."""
    parameters = inspect.signature(getattr(fleet.api.Fleet, method)).parameters
    return {name: parameter for name, parameter in parameters.items() if name != "self"}


def options_of(verb: str, *others: str) -> dict[str, click.Parameter]:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return {str(param.name): param for param in command.params if type(param).__name__ not in ("CommonOption", *others)}


@pytest.mark.parametrize("verb", DOORS)
def test_each_option_of_a_verb_is_a_field_with_its_default(verb: str) -> None:
    spelled, own = DOORS[verb]
    params = options_of(verb)
    fields = {spelled.get(name, name): field for name, field in fields_of(verb.replace("-", "_")).items()}
    fields.pop(None, None)
    assert set(params) - own == set(fields)
    for name in set(params) - own:
        default = params[name].get_default(click.Context(cli))
        if default and default is not dataclasses.MISSING and "UNSET" not in repr(default):
            assert fields[name].default == (str(default) if isinstance(default, Path) else default), name


def test_sync_is_four_requests_of_one_verb() -> None:
    fields = {name for method in ("sync", "sync_data", "sync_image", "sync_wheels") for name in fields_of(method)}
    assert set(options_of("sync")) == fields - {"source"} | {"src", "force_only", "wheels", "yes"}


def test_what_is_said_holds_no_value_of_a_variable() -> None:
    with pytest.raises(UsageError) as raised:
        fleet_here("a").plan.launch("t.py", env={"TOKEN": b"hunter2"})  # type: ignore[dict-item]
    assert "hunter2" not in str(raised.value)


def test_each_option_is_a_field() -> None:
    """What is called otherwise on the command line is translated in one place."""
    own = {"again", "from_", "yes", "ranks", "no_fold", "env_file", "no_preflight"}  # of the command line alone
    theirs = {"rdzv_endpoint", "num_processes"}  # other launchers' names
    elsewhere = {"preflight", "folder", "repeats", "claims", "attempt", "options"}
    fields, params = set(fields_of("launch")), set(options_of("launch", "EngineOption", "SourceOption"))
    assert params - own - theirs - fields == set() and fields - params == elsewhere


def test_an_engines_own_options_are_keywords_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("a slots=2\n")
    plan = fleet.open().plan.launch("t.sh", engine="command", per="rank")  # type: ignore[call-arg]
    assert plan.describe()["world_size"] == 2
    with pytest.raises(UsageError, match="pre"):
        fleet.open().plan.launch("t.sh", engine="command", pre="rank")  # type: ignore[call-arg]


def test_a_mapping_where_a_text_belongs_is_named_without_its_values() -> None:
    with pytest.raises(OptionError) as caught:
        Launch({"a": "secret"})  # type: ignore[arg-type]
    assert caught.value.problem == "must be a text"
