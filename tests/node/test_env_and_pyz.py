"""`fleet launch --on env` and `python3 fleet.pyz` are one command: the same options, words and record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import run as typed
from fleet.cli.run.launch import launch
from fleet.cli.run.launch_options import EngineOption, SourceOption
from fleet.cli.verbs.pack import explain_env
from fleet.node.container.options import FLEETS, OF_PLACE, ROWS, parser
from fleet.ops.pack import pack

# read in ways that take a python of 3.10; a container's own variables reach its ranks: set -a; . FILE
ON_ENV_ONLY = {"env-file"}
# one that no container, or no one that a platform started, can have
NOT_IN_CONTAINERS = {
    *(
        "again",
        "from",
        "yes",
        "detach",
        "lease",
        "spares",
        "sync",
        "wheels",
        "force",
        "max-delete",
        "as-there",
        "share",
    ),
    *("no-preflight", "no-fold", "max-log", "sample", "flight-recorder", "ranks", "notify"),
    *("clean-env", "keep-env", "env-expand", "no-python", "container", "container-arg"),
    *("rdzv-endpoint", "num-processes"),  # of other launchers, for a head
}


def written(names: object) -> set[str]:
    return {str(name).lstrip("-").replace("_", "-") for name in names if str(name).startswith("--")}  # type: ignore[attr-defined]


def test_both_have_the_same_options() -> None:
    zipapp = written(name for action in parser()._actions for name in action.option_strings) - {"help"}
    params = [param for param in launch.params if getattr(param, "expose_value", True)]
    own = {opt for param in params if not isinstance(param, SourceOption) for opt in written(param.opts)}
    own |= set(FLEETS)
    assert own - NOT_IN_CONTAINERS - zipapp == ON_ENV_ONLY
    assert zipapp - own == set() and zipapp > set(ROWS) and not zipapp & NOT_IN_CONTAINERS
    assert {opt for param in params if isinstance(param, EngineOption) for opt in written(param.opts)} < zipapp
    assert written(opt for param in explain_env.params for opt in param.opts) >= set(OF_PLACE)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    file = pack(tmp_path_factory.mktemp("pack") / "fleet.pyz")
    return [[sys.executable, str(file)], [sys.executable, "-m", "fleet", "launch", "--on", "env"]]


def test_the_heads_half_in_it_needs_nothing_else(commands: list[list[str]]) -> None:
    """Every module of it can be imported from the file alone, by a Python without packages."""
    file = commands[0][1]
    names = [name[:-3].replace("/", ".").replace(".__init__", "") for name in zipfile.ZipFile(file).namelist()]
    modules = [name for name in names if name.startswith(("fleet.", "ClusterShell")) and ".node." not in name]
    assert {"fleet.ops.run.end.sent", "fleet.engines.containers", "fleet.engines.deepspeed"} < {*modules}
    line = f"import sys, importlib; sys.path.insert(0, {file!r}); [importlib.import_module(it) for it in {modules}]"
    subprocess.run([sys.executable, "-I", "-S", "-c", line], check=True, timeout=120)


def run(command: list[str], words: list[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[2]), **environ}
    return subprocess.run([*command, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "words, code, text",
    [
        (["t.py"], 2, "nothing in the environment says how many nodes there are"),
        (["--nnodes", "1", "--wait=soon", "t.py"], 2, "must be"),
        (["--nnodes", "1", "--node-timeout", "0", "t.py"], 2, "0: must be a number, 1 or more"),
        (["--nnodes", "1", "--env", "NOPE", "t.py"], 2, "--env NOPE: not set here"),
        (["--nproc_per_node", "0", "--nnodes", "1", "t.py"], 2, "--nproc-per-node=0: no number of ranks"),
        (["--nnodes", "x", "t.py"], 2, "--nnodes=x: no number of nodes"),
        (["--nnodes", "1", "--spares", "1", "t.py"], 2, ""),
        (["--nnodes", "1", "--engine", "command", "--per", "node", "false"], 1, "exit code 1"),
    ],
)
def test_both_say_the_same(commands: list[list[str]], words: list[str], code: int, text: str, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("")
    for command in commands:
        done = run(command, words, tmp_path)
        assert done.returncode == code and text in done.stdout + done.stderr, (command, done)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words, message",
    [
        (["--partition", "p"], "--partition: it is for --on slurm"),
        (["--mem", "4G"], "--mem: it is for --on slurm"),
        (["--queue", "q"], "--queue: it is for --on k8s"),
        (["--container", "i"], "--container has no meaning with --on env"),
        (["--container-arg=--x"], "--container-arg has no meaning with --on env"),
        (["-w", "gpu1"], "--hosts has no meaning with --on env"),
    ],
)
def test_what_means_nothing_in_a_container_is_refused(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert typed(["launch", "--on", "env", "--nnodes", "1", *words, "train.py"]) == 2
    assert f"error: {message}" in (err := capfd.readouterr().err) and "  hint: " in err


def test_both_leave_the_same_record(commands: list[list[str]], tmp_path: Path) -> None:
    words = ["--engine", "command", "--name", "both", "--max-restarts", "0", "--env", "COLOUR", "--env", "A=b"]
    script = ["sh", "-c", "echo $COLOUR $A $RANK/$WORLD_SIZE"]
    records = []
    for number, command in enumerate(commands):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = run(command, [*words, *script], folder, COLOUR="red", NNODES="1", NPROC_PER_NODE="2")
        assert done.returncode == 0 and done.stdout.count("red b ") == 2, done
        records.append(record(folder / "runs" / "latest"))
    assert records[0] == records[1]


def record(run: Path) -> dict[str, Any]:
    """Returns it without what no two runs have alike."""
    text = {name: (run / name).read_text() for name in ("run.json", "summary.json")}
    plan, summary = (json.loads(text[name]) for name in text)
    for document in (plan, summary):
        for name in ("run", "logs", "started", "seconds", "end"):
            document.pop(name, None)
    plan["fleet"].pop("folder")
    plan.pop("master")
    (host,) = summary["hosts"].values()
    events = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    ranks = [{key: rank[key] for key in ("rank", "exit_status") if key in rank} for rank in host.pop("ranks")]
    return {"plan": plan, "summary": summary, "events": events, "ranks": ranks}
