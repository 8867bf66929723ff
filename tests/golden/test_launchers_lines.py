"""Lines of other launchers, as projects have them, typed to `fleet` and to `fleet launch`. Either each word is carried,
and the plan is as recorded in tests/golden/mistakes/launchers/LINES.json; or nothing is proposed, and the word without
a translation is named. FLEET_GOLDEN=write writes what is now: read the difference before you commit it."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import run
from tests.golden.test_launchers_page import planned

RECORDED = Path(__file__).parent / "mistakes/launchers/LINES.json"
CASES: list[dict[str, Any]] = json.loads(RECORDED.read_text())
# in the state that the lines were written for
HOSTS = "".join(f"gpu{n} slots=8\n" for n in (1, 2, 3, 4))
FILES = {"hostfile": HOSTS, "config.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\n"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)
    for name, text in FILES.items():
        Path(name).write_text(text)
    return tmp_path


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Returns the error, and its hint."""
    assert run(words) == 2
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    return [error, hint.removeprefix("  hint: ")]


@pytest.mark.parametrize("case", CASES, ids=[case["typed"][:60] for case in CASES])
def test_a_line(case: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(case["typed"])
    error, hint = printed(["launch", *words], capsys)
    _, at_the_top = printed(words, capsys)
    now: dict[str, Any] = {"printed": hint, "error": error}
    if hint.startswith("fleet launch "):
        assert at_the_top == hint
        now = {"printed": hint, "plan": {**planned(hint, capsys), "env": environment(hint)}}
    else:
        assert not at_the_top.startswith("fleet ") and at_the_top.endswith(hint)  # nothing is proposed, and why
    if os.environ.get("FLEET_GOLDEN") == "write":
        case.update(now)
        RECORDED.write_text(json.dumps(CASES, indent=1) + "\n")
    assert now == {name: value for name, value in case.items() if name not in ("of", "typed")}


def environment(line: str) -> list[str]:
    words = shlex.split(line)
    return [value for option, value in zip(words, words[1:], strict=False) if option == "--env"]


@pytest.mark.parametrize("case", [case for case in CASES if "plan" in case], ids=lambda it: it["typed"][:60])
def test_each_word_is_carried(case: dict[str, Any]) -> None:
    """Each value that was typed is in the line, or belongs to an option that fleet needs not be given."""
    values = [
        word.partition("=")[2] if word[:1] == "-" and "=" in word else word for word in shlex.split(case["typed"])
    ]
    proposed = [part for word in shlex.split(case["printed"]) for part in (word, *word.split("=", 2))]
    lost = [value for value in values if value[:1] != "-" and value not in proposed]
    assert set(lost) <= DONE, lost


# launchers; a node's rank, a run's id, kinds of rendezvous, places of one machine; what shows output; ways to start
DONE = {"torchrun", "deepspeed", "accelerate", "launch", "colossalai", "run", "mpirun", "accelerate-launch"}
DONE |= {"torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.runner", "accelerate.commands.launch"}
DONE |= {"python", "python3", "c10d", "static", "standard", "localhost:0", "localhost", "0.0.0.0"}
DONE |= {"0", "1", "100", "101", "7", "job", "omni", "3", "0:3", "gpu1:29500", "gpu1:29400"}


def test_there_are_many() -> None:
    assert len(CASES) > 50 and len({case["of"] for case in CASES}) > 15
    assert sum("plan" in case for case in CASES) >= 40
