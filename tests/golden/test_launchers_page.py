"""docs/launchers.md: each row's plan as recorded in tests/golden/launchers.json, and each word of theirs one that fleet
knows. FLEET_GOLDEN=write writes what is planned now: read the difference before you commit it."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.line.command import one_spelling
from fleet.cli.main import run
from fleet.cli.verbs.play import command_of
from fleet.engines.launchers import BEGIN, OPTIONS, REFUSED, SAME
from fleet.engines.translate import launch_arguments, options_of
from tests.pages import BLOCKS, PAGES, ROOT

PAGE = ROOT / "docs/launchers.md"
RECORDED = Path(__file__).with_name("launchers.json")
ROWS = re.findall(r"^\| (`.*) \| `(fleet .*)` \|$", PAGES[PAGE], re.M)
# of programs that start other programs, none of which has words in common with a launcher of ranks
FOREIGN = {"nodes", "ntasks-per-node"}


def planned(line: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """A run's id, its port and what follows from them are of one run only."""
    _, *words = shlex.split(line)
    assert run(["--json", "--dry-run", *words]) == 0, capsys.readouterr().err
    plan = json.loads(capsys.readouterr().out)["plan"]
    if "script" in plan:
        return {
            "script": re.sub(
                r"exec \S+( -m fleet)?|by fleet \S+;|(?<=FLEET_CLAIMS=)\S+", "...", plan["script"]
            ).splitlines()
        }
    hosts: dict[str, dict[str, Any]] = plan["hosts"]
    first = next(iter(hosts.values()))
    kept = [word for word in first["argv"] if plan["run"] not in word and not word.startswith("--world_info=")]
    port = plan["master"].rpartition(":")[2]
    if f" {port} " not in line:
        kept = [word.replace(port, "PORT") for word in kept]
    ranks = {name: len(host["ranks"]) for name, host in hosts.items()}
    return {"ranks": ranks, "engine": plan["engine"], "command": first["command"], "argv": kept, "env": first["env"]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("A", "1")
    for name in ("FLEET_INVENTORY", "DS_ENV_FILE"):
        monkeypatch.delenv(name, raising=False)
    (hosts,) = (block.text for block in BLOCKS if block.page == "docs/launchers.md" and "slots=8" in block.text)
    Path("hostfile").write_text(hosts)
    Path("default.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n")
    return tmp_path


@pytest.mark.parametrize("line", [ours for _, ours in ROWS])
def test_a_row_is_planned_as_recorded(line: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = planned(line, capsys)
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("FLEET_GOLDEN") == "write":
        recorded = {ours: known for ours, known in {**recorded, line: now}.items() if ours in dict(map(reversed, ROWS))}
        RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
    assert now == recorded[line]


@pytest.mark.parametrize("theirs", [theirs for theirs, _ in ROWS])
def test_fleet_knows_each_of_their_words(theirs: str) -> None:
    options = {option.lstrip("-") for param in command_of("launch").params for option in param.opts}
    before = re.split(r" (?:train\.py|pkg\.train)", theirs)[0]  # behind it are the script's own
    words = {one_spelling(word) for word in re.findall(r" --([a-z][\w-]+)", before)} - {"exclude"}
    theirs_own = {name for tool in OPTIONS for name in options_of(tool)}
    assert words <= options | SAME.keys() | REFUSED.keys() | theirs_own | FOREIGN


# the host is in the words around it; one of two words of MPI's is a variable; a default is left away
OTHERWISE = ("on gpu3", "--launcher_args", "--nnodes 4 --node_rank")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (theirs.strip("`"), ours)
        for theirs, ours in ROWS
        if theirs[1:].startswith(tuple(BEGIN)) and not any(words in theirs for words in OTHERWISE)
    ],
)
def test_a_line_of_theirs_is_translated_so(
    theirs: str, ours: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = launch_arguments(shlex.split(theirs))
    assert words is not None
    now, recorded = planned(f"fleet launch {shlex.join(words)}", capsys), json.loads(RECORDED.read_text())[ours]
    for plan in (now, recorded):  # python3 in the place of python; dashes in that of underscores
        plan["command"] = [word.replace("python3", "python") for word in plan["command"]]
        plan["argv"] = [word.replace("_", "-") for word in plan["argv"]]
    assert now == recorded


def test_each_row_is_one() -> None:
    assert len(ROWS) == len(dict(map(reversed, ROWS))) == PAGES[PAGE].count(" | `fleet ") > 25
