"""fleet/requests: what a verb is asked for is checked where it is made, in the same way for every door."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest

import fleet
from fleet.cli.main import run
from fleet.cli.run.launch import launch as command
from fleet.errors import UsageError
from fleet.requests.launch import Launch

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
    ({"force": True}, "force has a meaning with --sync only", ["--force"]),
    ({"master_port": 70000}, "master_port 70000: must be a whole number from 0 to 65535", []),
    ({"max_restarts": 1.5}, "max_restarts 1.5: must be a whole number, 0 or more", []),
    ({"max_restarts": True}, "max_restarts True: must be a whole number, 0 or more", []),
    ({"args": "--lr 1"}, "args '--lr 1': must be a list of texts", []),
    ({"args": [1]}, "args [1]: must be a list of texts", []),
    ({"engine_args": "--x"}, "engine_args '--x': must be a list of texts", []),
    ({"env": {"A": 1}}, "env must be a mapping of texts to texts ('A' is int)", []),
    ({"env": ["A=1"]}, "env ['A=1']: must be a mapping", []),
    ({"sync": "yes"}, "sync 'yes': must be true or false", []),
    ({"engine": 7}, "engine 7: must be a text", []),
    ({"runs_dir": 7}, "runs_dir 7: must be a text or a path", []),
]


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
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("a\n")
    with pytest.raises(UsageError) as raised:
        fleet.open().plan.launch("t.py", **given)
    assert str(raised.value) == refused
    if typed:
        code, error = run(["launch", *typed, "t.py"]), capfd.readouterr().err
        name = refused.split()[0]
        assert code == 2 and f"error: {refused.replace(name, typed[0], 1)}" in error, error


def test_what_is_said_holds_no_value_of_a_variable() -> None:
    with pytest.raises(UsageError) as raised:
        Launch("t.py", env={"TOKEN": b"hunter2"})  # type: ignore[dict-item]
    assert "hunter2" not in str(raised.value)


def test_a_program_sees_the_fields() -> None:
    """help() and editors: the method's parameters are the request's."""
    of_method, of_request = inspect.signature(fleet.api.Fleet.launch), inspect.signature(Launch)
    assert list(of_method.parameters) == ["self", *of_request.parameters]
    assert of_method.parameters["lease"].default == 120.0


def test_each_option_is_a_field() -> None:
    """What is called otherwise on the command line is translated in one place."""
    own = {"again", "from_", "ranks", "env_file", "no_preflight"}  # of the command line alone
    theirs = {"rdzv_endpoint", "num_processes"}  # other launchers' names
    elsewhere = {"preflight", "folder", "repeats", "options"}
    fields = {field.name for field in dataclasses.fields(Launch)}
    params = {
        str(param.name) for param in command.params if type(param).__name__ not in ("CommonOption", "EngineOption")
    }
    assert params - own - theirs - fields == set() and fields - params == elsewhere


def test_a_document_makes_the_same_request_once_more() -> None:
    asked = Launch("t.py", ["--lr", "1"], env={"A": "1"}, nnodes="2:4", lease=None, options={"per": "node"}, sync=True)
    document = json.loads(json.dumps(asked.document))
    assert Launch.of(document) == asked
    assert document["per"] == "node" and "grace" not in document


def test_an_engines_own_options_are_keywords_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("a slots=2\n")
    plan = fleet.open().plan.launch("t.sh", engine="command", per="rank")  # type: ignore[call-arg]
    assert plan.describe()["world_size"] == 2
    with pytest.raises(UsageError, match="pre"):
        fleet.open().plan.launch("t.sh", engine="command", pre="rank")  # type: ignore[call-arg]
