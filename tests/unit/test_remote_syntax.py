"""The programs shipped to nodes must compile on the oldest Python that fleet promises to work with there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fleet
from fleet.transport.program import source

REMOTE = sorted((Path(fleet.__file__).parent / "remote").rglob("*.py"))

# in the standard library since 3.7 or later, by the ways they are commonly reached
TOO_NEW_MODULES = {"dataclasses", "contextvars", "graphlib", "zoneinfo", "tomllib", "importlib.resources"}
TOO_NEW_KEYWORDS = {"capture_output", "text", "dirs_exist_ok", "missing_ok"}
TOO_NEW_ATTRIBUTES = {
    "removeprefix",
    "removesuffix",
    "time_ns",
    "monotonic_ns",
    "pidfd_open",
    "pidfd_send_signal",
    "cached_property",
    "get_running_loop",
    "nullcontext",
    "fromisoformat",
    "reconfigure",
    "posix_spawn",
    "memfd_create",
    "copy_file_range",
    "unparse",
    "is_relative_to",
    "shlex.join",
    "asyncio.run",
    "math.dist",
    "math.comb",
    "threading.get_native_id",
    "threading.excepthook",
    "waitstatus_to_exitcode",
}


def too_new(source: str) -> list[str]:
    """ "LINE: WHAT" for syntax and well-known names that Python 3.6 does not have."""
    try:
        tree = ast.parse(source, feature_version=(3, 6))
    except SyntaxError as error:
        return [f"{error.lineno}: {error.msg}"]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr):
            found.append(f"{node.lineno}: walrus")
        elif isinstance(node, ast.Import):
            found += [f"{node.lineno}: {a.name}" for a in node.names if a.name in TOO_NEW_MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
            found += [
                f"{node.lineno}: {name}"
                for name in names
                if name in TOO_NEW_MODULES or name == "__future__.annotations"
            ]
        elif isinstance(node, ast.Call):
            found += [f"{node.lineno}: {k.arg}=" for k in node.keywords if k.arg in TOO_NEW_KEYWORDS]
        elif isinstance(node, ast.Attribute):
            owner = f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""
            if node.attr in TOO_NEW_ATTRIBUTES or owner in TOO_NEW_ATTRIBUTES:
                found.append(f"{node.lineno}: {node.attr}")
        elif isinstance(node, ast.FunctionDef) and node.args.posonlyargs:
            found.append(f"{node.lineno}: positional-only")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "if (n := 1): pass",
        "def f(a, /): pass",
        "import dataclasses",
        "from __future__ import annotations",
        "subprocess.run([], capture_output=True)",
        "'a'.removeprefix('b')",
        "shlex.join([])",
        "async def f():\n  return [x async for x in y]\nmatch = 1\nmatch x:\n  case 1: pass",
    ],
)
def test_the_checker_finds_what_is_too_new(text: str) -> None:
    assert too_new(text)


def test_there_is_something_to_check() -> None:
    assert {"common.py", "execute.py"} <= {path.name for path in REMOTE}


@pytest.mark.parametrize("path", REMOTE, ids=lambda p: p.name)
def test_remote_programs_are_python_3_6(path: Path) -> None:
    text = path.read_text("utf-8")
    assert too_new(text) == []
    # the syntax tree keeps no trace of f"{x=}"
    assert not any("=}" in line and ("f'" in line or 'f"' in line) for line in text.splitlines())
    assert not (path.parent / "__init__.py").exists(), "fleet/remote is shipped as text, it is no package"


def test_no_program_uses_a_name_that_nothing_shipped_with_it_defines(tmp_path: Path) -> None:
    named = re.findall(r"^# (?:parts|only): (.+)$", "\n".join(p.read_text("utf-8") for p in REMOTE), re.MULTILINE)
    parts = {"common", *" ".join(named).split()}
    for path in REMOTE:
        if path.stem not in parts:
            (tmp_path / path.name).write_bytes(source(path.stem))
    ruff = [Path(sys.executable).with_name("ruff"), "check", "--isolated", "--select", "F821,F823", tmp_path]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    (tmp_path / "broken.py").write_text("undefined_name()")
    assert subprocess.run(ruff, capture_output=True).returncode == 1
