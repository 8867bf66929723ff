"""What each platform's variables come to: platforms/NAME.json has an environment and its origin, NAME.txt what `fleet
explain-env` prints for it. Adding a case is adding a file; {folder} is one that has the file `hosts`.

FLEET_GOLDEN=write writes what is printed now; read the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.node.base.errors import Refused
from fleet.node.container import place
from fleet.node.container.explain import about, lines
from fleet.node.container.platforms import PLATFORMS

SHOWN = Path(__file__).with_name("platforms")
CASES = sorted(path.stem for path in SHOWN.glob("*.json"))
REFUSED = {"azureml-processes", "pbs-other-host"}  # what no container can do anything with
DRAWN, AT_ONCE = 400, 20


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host grid03 of no GPU that is known."""
    monkeypatch.setattr(socket, "gethostname", lambda: "grid03")
    monkeypatch.setattr(socket, "getfqdn", lambda: "grid03")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(place, "devices", lambda environ: None)


def environment(name: str, folder: Path) -> dict[str, str]:
    case = json.loads((SHOWN / f"{name}.json").read_text())
    (folder / "hosts").write_text(case.get("hosts", ""))
    return {key: value.replace("{folder}", str(folder)) for key, value in case["environ"].items()}


@pytest.mark.parametrize("name", CASES)
def test_what_is_shown(name: str, tmp_path: Path) -> None:
    found = about(environment(name, tmp_path), {})
    shown = "\n".join(lines(found)) + "\n"
    file = SHOWN / f"{name}.txt"
    if os.environ.get("FLEET_GOLDEN") == "write":
        file.write_text(shown)
    assert shown == file.read_text() and bool(found["wrong"]) == (name in REFUSED)


@pytest.mark.parametrize("name", [case for case in CASES if case not in REFUSED])
def test_a_count_of_nodes_by_hand_is_held_to_the_platforms(name: str, tmp_path: Path) -> None:
    """One that differs is believed, or is an error that names both variables; equal, or given, it is none."""
    environ = environment(name, tmp_path)
    most = about(environ, {})["nodes"]["most"]
    for count in (most, most + 7):
        found = about({**environ, "NNODES": str(count)}, {})
        wrong = [it["message"] for it in found["wrong"]]
        if found["nodes"]["most"] == most != count:
            assert any(re.match(rf"NNODES( holds |=){count}, but \S+ says ", it) for it in wrong), wrong
        else:
            assert not [it for it in wrong if it.startswith("NNODES")]
    given = about({**environ, "NNODES": "77"}, {"nnodes": str(most), "node_rank": "0", "master_addr": "m"})
    assert not [it for it in given["wrong"] if "NNODES" in it["message"]]


def test_every_table_has_its_case() -> None:
    assert {path.stem for path in SHOWN.glob("*.txt")} == set(CASES)
    shown = {path.read_text().split()[1].rstrip(",") for path in SHOWN.glob("*.txt")}
    assert {table["name"] for table in PLATFORMS} == shown and len(shown) >= 24
    assert all(json.loads((SHOWN / f"{name}.json").read_text())["origin"] for name in CASES)


# -- one variable is broken -----------------------------------------------------------------------------------
BREAKS: dict[str, str | None] = {
    "missing": None,
    "empty": "",
    "not expanded": "$(VALUE)",
    "negative": "-1",
    "huge": "9" * 40,
    "long": "x" * 70000,
    "no number": "one",
    "another count": "7",
    "this machine": "localhost",
    "binary": "\udcff\x1b[31m",
    "a folder": "/",
    "nonsense": '{"cluster": {"a": [1]}, "task": {"type": "a", "index": true}}',
}


def what(environ: dict[str, str]) -> dict[str, Any]:
    try:
        return about(environ, {})
    except Refused as error:
        return {"wrong": [{"message": error.message, "hint": error.hint}]}


def of(found: dict[str, Any]) -> dict[str, Any]:
    keys = ("nodes", "node_rank", "ranks", "master", "port", "job")
    return {thing: found[thing] for thing in keys}


@pytest.mark.parametrize("first", range(0, DRAWN, AT_ONCE))
def test_a_variable_that_is_broken(first: int, tmp_path: Path) -> None:
    """It is named, or changes nothing but the one thing that it alone says. Nothing waits, nothing else is raised."""
    for seed in range(first, first + AT_ONCE):
        draw = random.Random(seed)
        name = draw.choice([name for name in CASES if name not in REFUSED])
        environ = environment(name, tmp_path)
        variable, how = draw.choice(sorted(environ)), draw.choice(sorted(BREAKS))
        value = BREAKS[how]
        broken = {key: text for key, text in environ.items() if key != variable}
        if value is not None:
            broken[variable] = value
        began = time.monotonic()
        found = what(broken)
        assert time.monotonic() < began + 5
        assert fair(variable, how, about(environ, {}), found, broken), (seed, name, variable, how, found)


def fair(variable: str, how: str, right: dict[str, Any], found: dict[str, Any], broken: dict[str, str]) -> bool:
    texts = [text for wrong in found["wrong"] for text in (wrong["message"], wrong["hint"])]
    if texts:
        # without what shows which platform this is, it is another one, or none
        unknown = variable == "AZUREML_RUN_ID" or not any(broken.values())
        return all(0 < len(text) < 400 for text in texts) and (unknown or any(named(variable, text) for text in texts))
    lines(found)
    said = {thing for thing, where in found["from"].items() if where == variable}
    called = {"nodes": "nodes", "rank": "node_rank", "each": "ranks", "master": "master", "port": "port", "job": "job"}
    usual = {thing for thing in ("each", "port", "job") if right["from"].get(thing) == variable}
    if found["node_rank"] is None and found["job"]:
        usual.add("rank")  # the master's address tells who leads
    differing = {thing for thing, it in of(found).items() if it != of(right)[thing]}
    believed = not said & {"nodes", "rank", "each", "port"} or how == "another count"
    return differing <= {called[thing] for thing in said | usual} and believed


def named(variable: str, text: str) -> bool:
    """Is true where it stands in the text, or the pattern that it is one of."""
    words = re.findall(r"[A-Z][A-Z0-9_*]*[A-Za-z0-9_]*", text)
    return any(re.fullmatch(word.replace("*", ".*"), variable) for word in words)


# -- a user's variables stand beside a platform's -------------------------------------------------------------
MINE = {
    "NNODES": ("1", "2", "3", "5", "1:2"),
    "NODE_RANK": ("0", "1", "4"),
    "MASTER_ADDR": ("mine",),
    "NPROC_PER_NODE": ("3",),
    "MASTER_PORT": ("7777",),
    "RDZV_ID": ("my",),
}


# nothing else sets what these set, as Azure ML's LOCAL_RANK: their place stands, whatever the user has set
SURE = {"skypilot", "dstack", "sagemaker", "volcengine", "modelarts", "aihc", "azureml", "kubeflow", "volcano"}


@pytest.mark.parametrize("first", range(0, DRAWN, AT_ONCE))
def test_two_that_say_where_this_is(first: int, tmp_path: Path) -> None:
    """It is as the user says, or as the platform says; or one of the user's variables is named. Nothing is of both."""
    for seed in range(first, first + AT_ONCE):
        draw = random.Random(seed)
        name = draw.choice([name for name in CASES if name not in REFUSED])
        environ = environment(name, tmp_path)
        mine = {variable: draw.choice(MINE[variable]) for variable in draw.sample(sorted(MINE), draw.randint(1, 6))}
        both = {**environ, **mine}
        found = what(both)
        texts = [text for wrong in found["wrong"] for text in (wrong["message"], wrong["hint"])]
        said = any(named(variable, text) for variable in MINE for text in texts)
        # where they meet, and ranks, are of use to a platform that does not set them
        without = {key: text for key, text in both.items() if key in environ or key not in ("NNODES", "NODE_RANK")}
        whole = {"NNODES", "NODE_RANK", "MASTER_ADDR"} <= set(mine)
        platforms = not texts and (not whole or found["platform"] in SURE) and of(found) == of(what(without))
        assert said if texts else platforms or as_by_hand(found, both), (seed, name, mine, found)


def of_two(nodes: str) -> dict[str, int]:
    least, _, most = nodes.partition(":")
    return {"least": int(least), "most": int(most or least)}


def as_by_hand(found: dict[str, Any], both: dict[str, str]) -> bool:
    ranks = both.get("NODE_RANK"), both.get("RANK"), "None"
    of_hand = of_two(both["NNODES"]) == found["nodes"] and str(found["node_rank"]) in ranks
    port = int(both.get("MASTER_PORT", 29500))
    return of_hand and (found["master"], found["port"]) == (both.get("MASTER_ADDR"), port)
