"""Each hint of the package, found in its source: what it has to be pasted is a line that fleet takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from fleet.cli.line.hints import as_typed
from tests.command_lines import commands_in, wrong_hints

PACKAGE = Path(__file__).parents[2] / "fleet"
# by the beginning of what is found: why it is no command of a hint, or not one yet
NONE = {
    "fleet init writes YAML": "prose",
    "fleet runs no ProxyCommand": "prose",
    "fleet get": "the path is not known there",
    "fleet stop": "a reason: what ended the run",
    "fleet build": "a file's purpose",
    "fleet logs --since": "a file's purpose",
    "fleet lab x": "a mark in /etc/hosts; examples of several verbs",
    "fleet lab up x": "a number is put in",
    "fleet -i lab ...": "a comment in the lab's inventory",
    "fleet kill-port x": "ports are put in",
    "fleet --on x hosts": "a source is put in",
    "fleet kill-port -w x x": "ports are put in",
    "fleet kill-port -y xx": "ports are put in",
    "fleet kill-port %d": "a port is put in",
    "fleet runs --prune -y x": "options are put in, or nothing",
    "fleet exec --env-of x": "the beginning of a line",
    "fleet -w HOSTS play": "its file stands on the user's line",
}


def texts() -> Iterator[tuple[str, str]]:
    """(file:line, text) of all strings of the package but docstrings; x for what is put in."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                inner.add(id(body[0].value))
            if id(node) in inner:
                continue
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            if "fleet " in text:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", re.sub(r"\\\d|\{[^{}]*\}", "x", text)


def test_every_command_of_a_hint_is_one() -> None:
    commands, wrong, used = 0, list[str](), set[str]()
    for where, text in texts():
        hint = as_typed(text)
        commands += len(commands_in(hint))
        for fault in wrong_hints(f"  hint: {' '.join(hint.splitlines())}"):
            start = next((start for start in NONE if fault.startswith(start)), None)
            used |= {start} if start else set()
            wrong += [] if start else [f"{where}: {fault}"]
    assert not wrong, "\n".join(wrong)
