"""The documents of docs/json.md: each command there, on the lab, answers in the shape that stands below it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.events import undocumented
from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab
from tests.pages import BLOCKS
from tests.wheelmaker import make_wheel

PAGE = [block for block in BLOCKS if block.page == "docs/json.md"]
SHOWN = {block.commands[0]: document.text for block, document in pairwise(PAGE) if block.kind == "console"}
SETUP = "from setuptools import setup\nsetup(name='tinyext', version='0.1', py_modules=['tinyext'])\n"


def unlike(shown: Any, answer: Any, path: str = "") -> list[str]:
    """Where an answer has another shape. Hosts and what stands below "..." are many of one shape."""
    if isinstance(shown, dict) and isinstance(answer, dict):
        shown, answer = dict(shown), dict(answer)
        more = shown.pop("...", None)
        if path.endswith(".hosts") and shown or path == ".plan" and shown:
            (each,) = shown.values()
            return [fault for value in answer.values() for fault in unlike(each, value, f"{path}.NAME")]
        if more is not None:
            shown.update((key, more if isinstance(more, dict) else None) for key in answer.keys() - shown)
        extra = [f"{path}.{key} is not told of" for key in answer.keys() - shown]
        missing = [f"{path}.{key} is not there" for key in shown.keys() - answer]
        both = (unlike(shown[key], answer[key], f"{path}.{key}") for key in shown.keys() & answer)
        return [*extra, *missing, *(fault for faults in both for fault in faults)]
    if isinstance(shown, list) and isinstance(answer, list):
        return unlike(shown[0], answer[0], f"{path}[0]") if shown and answer else []
    numbers = isinstance(shown, (int, float)) and isinstance(answer, (int, float))
    alike = type(shown) is type(answer) or numbers or None in (shown, answer)
    return [] if alike else [f"{path}: {type(answer).__name__} for {type(shown).__name__}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of the page's commands can be typed."""
    here = tmp_path_factory.mktemp("documents")
    (here / "job.py").write_text("import os; print('rank', os.environ['RANK'])\n")
    (here / "model").write_bytes(b"weights" * 9999)
    make_wheel(here / "wheels")
    (here / "my-extension").mkdir()
    (here / "my-extension/setup.py").write_text(SETUP)
    (here / "my-extension/tinyext.py").write_text("")
    (here / "steps.yaml").write_text("- exec: [hostname]\n")
    (here / "tasks.py").write_text(
        "from fabric import task\n\n@task\ndef deploy(c):\n    c.run('echo it; exit 3', hide=True)\n"
    )
    return here


@pytest.fixture(scope="module")
def own_lab(breakable: BreakableLab) -> Iterator[VirtualLab]:
    """Two hosts; what is synced here would be another folder's to the tests of the session's lab."""
    with breakable.enrol().narrowed(2) as two:
        yield two


@pytest.mark.parametrize("command", [command for command in SHOWN if "--image" not in command])  # see test_images.py
def test_the_document_is_as_shown(command: str, own_lab: VirtualLab, folder: Path) -> None:
    words = [str(own_lab.password_file) if word == "pw" else word for word in shlex.split(command)[1:]]
    inventory = () if words[0] in ("lab", "examples") else ("-i", "lab")
    pasted = ""
    if "init" in words:  # the lab's inventory is its own
        inventory = ("-i", str(folder / "new.yaml"))
        pasted = "".join(f"ssh root@{own_lab.address(name)}\n" for name in own_lab.names)
    done = own_lab.fleet(*inventory, *words, cwd=folder, stdin=pasted, timeout=300)
    shown = json.loads(SHOWN[command])
    assert done.returncode == shown.get("exit_code", 0), done.stderr
    *events, document = map(json.loads, done.stdout.splitlines())
    assert unlike(shown, document) == [] and undocumented(events) == []
