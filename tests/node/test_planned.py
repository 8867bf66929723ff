"""A rank is what the plan says, compared as the last step before it begins; a difference is fleet's own error."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import fleet
from tests.node.nodes import answer, final, folder_of, read_json, supervise_spec

RANKS = Path(fleet.__file__).parent / "node/run/rank"
FILES = {
    **{name: (RANKS / name).read_text() for name in ("rank.py", "drain.py", "watch.py", "spawn.py")},
    "command.json": json.dumps({"argv": ["sh", "-c", "env; pwd", "sh", "a b"], "local_rank_at": 4}),
}
SPAWN = [{"python": True}, {"run_dir": "spawn.py"}]
ENV = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
ABOUT = {"attempt": 0, "max_restarts": 0, "least": 0, "world_size": 2, "hosts": {"n1": [0, 2]}}


def begin(home: Path, run: str, argv: list[Any], **changes: Any) -> tuple[int, str, str]:
    """How rank 0 ended, and what it wrote."""
    spec = supervise_spec(run, argv, files=FILES, about=ABOUT, cwd="~/work", env={"A": "1", "B": "é"})
    (home / "work").mkdir()
    answer("run.supervise", {**spec, **changes}, home)
    final(home, run)
    folder = folder_of(home, run)
    (record,) = folder.glob("rank?.json")
    return read_json(record)["status"], *(record.with_suffix(end).read_text() for end in (".out", ".err"))


def by_launcher(line: str, **env: str) -> list[Any]:
    """A launcher that does so before it starts its rank."""
    words = [f"{name}={value}" for name, value in {**ENV, **env}.items()]
    return ["env", *words, "sh", "-c", f'{line}; exec "$@"', "sh", *SPAWN]


CHANGES = {
    "nothing": (by_launcher(":"), None),
    "a value, which is a launcher's to change": (by_launcher("export A=2"), None),
    "its folder": (by_launcher("cd /"), "its working folder is /, not {home}/work"),
    "a variable": (by_launcher("unset A"), "the variable A has none"),
    "a rank of another node": (by_launcher(":", RANK="2"), "it is rank 2, this node has ranks 0 to 1"),
    "the world": (by_launcher(":", WORLD_SIZE="3"), "WORLD_SIZE is 3, there are 2 ranks"),
    "the command": (
        by_launcher(f"echo {shlex.quote(json.dumps({'argv': ['true']}))} > $FLEET_RUN_DIR/command.json"),
        "it is another command",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_rank_that_is_another_does_not_begin(home: Path, run: str, change: str) -> None:
    argv, said = CHANGES[change]
    status, out, err = begin(home, run, argv)
    if said is None:
        assert (status, err) == (0, "") and out.endswith("/work\n"), out
        assert "FLEET_PLAN" not in out, "the plan is nothing to the rank"
    else:
        assert (status, out) == (125, "")
        assert err == f"fleet: a fault in fleet itself: {said.format(home=home)}\n"


@pytest.mark.parametrize(("activate", "said"), [(None, "the variable A has another value"), ("export A=2", "")])
def test_values_count_where_no_other_program_stands_between(
    home: Path, run: str, activate: str | None, said: str
) -> None:
    """What a user's own shell code does to the environment is the user's."""
    broken = {**FILES, "spawn.py": FILES["spawn.py"].replace("def main(", "os.environ.update(A='2')\n\n\ndef main(")}
    argv = [*SPAWN, "0", "1"]
    status, _, err = begin(home, run, argv, files=broken, activate=activate, env={"A": "1", "WORLD_SIZE": "2"})
    assert (status == 125) == bool(said) and said in err
