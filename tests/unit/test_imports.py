"""Imports run one way, heavy packages stay behind their one door, and help is instant."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fleet

ROOT = Path(__file__).parents[2]
PACKAGE = Path(fleet.__file__).parent
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(PACKAGE / "shipped"))

# what -> the only files that may import it (globs below fleet/)
DOORS = {
    "click": ["cli/*.py", "cli/*/*.py"],
    "rich": ["cli/*.py", "cli/*/*.py"],
    "fabric": ["tasks/*.py"],
    "paramiko": ["transport/ssh/*.py"],
    "invoke": ["tasks/*.py"],
    "torch": [],
    "deepspeed": [],
}


def imported(source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, also those inside functions; `from a import b` gives a and a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def trespasses(source: str, path: Path) -> list[str]:
    """ "LINE: NAME" for each import that `path` (relative to fleet/) has no right to."""
    return [
        f"{line}: {name}"
        for line, name in imported(source)
        for what, doors in DOORS.items()
        if (name == what or name.startswith(what + ".")) and not any(path.match(door) for door in doors)
    ]


def test_the_checker_sees_every_form_of_import() -> None:
    text = "def f():\n  import torch.nn\n  from paramiko.client import X\nimport clicker\n"
    found = trespasses(text, Path("ops/x.py"))
    assert sorted(set(found)) == ["2: torch.nn", "3: paramiko.client", "3: paramiko.client.X"]
    assert trespasses("import paramiko", Path("transport/ssh/keys.py")) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_stay_behind_their_door(path: Path) -> None:
    assert trespasses(path.read_text(), path.relative_to(PACKAGE)) == []


def test_layers_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " kept, 0 broken" in done.stdout


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["nosuchverb"]])
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    code = f"import sys; from fleet.cli.main import run; run({argv!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stderr.split())
    assert "click" in modules
    heavy = {
        "paramiko",
        "fabric",
        "invoke",
        "cryptography",
        "rich",
        "yaml",
        "ClusterShell",
        "torch",
        "asyncio",
        "ssl",
        "fleet.inventory",
        "fleet.transport.base",  # fleet.transport has their names for --transport
        "fleet.transport.ssh",
        "fleet.ops",
        "fleet.lab",
        "fleet.playbook",
    }
    assert modules & heavy == set()


@pytest.mark.parametrize("argv", [["hosts"], ["runs"], ["exec", "--", "true"], ["kill-port", "--dry-run", "29500"]])
def test_a_verb_that_launches_nothing_imports_nothing_of_that(argv: list[str], tmp_path: Path) -> None:
    """In a folder with runs, which are looked through for those that lost their head."""
    (tmp_path / "hostfile").write_text("here\n")
    (tmp_path / "runs" / "t-20260101-000000-abcd").mkdir(parents=True)
    code = f"import sys; from fleet.cli.main import run; run({argv!r}); print(*sys.modules, file=sys.stderr)"
    words = [sys.executable, "-c", code.replace("run([", "run(['--transport', 'local', ")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    modules = set(done.stderr.splitlines()[-1].split())
    rooms = ("plan", "start", "follow", "end", "launch")
    assert "fleet.cli.main" in modules
    assert {name for name in modules if name.startswith(tuple(f"fleet.ops.run.{room}" for room in rooms))} == set()
