"""Writes a copy of fleet whose messages are other text inside, and the same text again where it leaves the process.

Each letter of a message becomes a private-use character. What compares a message with a sentence sees none; the
screen, pipes and JSON are as ever, so that every test that starts `fleet` may run on the copy, which has its own .venv.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRIVATE = 0xE000
# what makes a message: classes of errors, events and reasons, and their helpers
MAKER = re.compile(
    r"([A-Z]\w*)?(Error|Failed|Refused|Notice|Reason|Interrupted|Silent|Ambiguous)$|^(run_end|_fault|Verdict)$"
)
FIELDS = {"message", "reason", "why"}  # of documents and keyword arguments
OTHERS = {"hint", "kind", "where", "host", "name", "file"}  # keyword arguments that are no sentence
# errors of Python's own that a library's code asks for by their text, and texts that are not fleet's
BUILTIN = {"KeyError", "OSError", "ImportError", "ModuleNotFoundError", "AttributeError"}
EDGE = r"""
import io as _io
import os as _os
import re as _re
import sys as _sys

_BYTES = _re.compile(rb"\xee([\x80\x81])([\x80-\xbf])|\\ue0([0-7][0-9a-f])")


def plain(data):
    def letter(m):
        return bytes([int(m[3], 16) if m[3] else (m[1][0] & 1) << 6 | m[2][0] & 63])
    return _BYTES.sub(letter, bytes(data))


class _Plain(_io.FileIO):
    def write(self, data):
        text = plain(data) if self.fileno() in (1, 2) else bytes(data)
        while text:
            text = text[super().write(text) or 0:]
        return len(data)


def edge():
    write, _io.FileIO = _os.write, _Plain
    _os.write = lambda fd, data: (write(fd, plain(data)), len(data))[1] if fd in (1, 2) else write(fd, data)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        old = getattr(_sys, name)
        if old is not None:
            new = _io.BufferedWriter(_Plain(fd, "w", closefd=False))
            setattr(_sys, name, _io.TextIOWrapper(new, old.encoding, old.errors, line_buffering=old.line_buffering))


if "pytest" not in _sys.modules:
    edge()
"""
# what a test reads of a run's documents is as at the edge
READ = r"""

import json as _json
import pathlib as _pathlib
import re as _re


def _plain(text):
    def letter(m):
        return chr(int(m[1], 16) if m[1] else ord(m[0]) - 0xE000)
    return _re.sub(r"[\ue000-\ue07f]|\\ue0([0-7][0-9a-f])", letter, text)


_loads, _read_text = _json.loads, _pathlib.Path.read_text
_json.loads = lambda text, **more: _loads(_plain(text if isinstance(text, str) else text.decode("utf-8")), **more)
_pathlib.Path.read_text = lambda self, *args, **more: _plain(_read_text(self, *args, **more))
"""


def private(text: str) -> str:
    """The text, its letters private; what stands in braces or behind % is no text of a message."""
    parts = re.split(r"(\{[^{}]*\}|%(?:\(\w+\))?[-#0 +]*[\d.*]*[a-zA-Z%])", text)
    return "".join(
        part if i % 2 else re.sub("[A-Za-z]", lambda m: chr(PRIVATE + ord(m[0])), part) for i, part in enumerate(parts)
    )


class Messages(ast.NodeVisitor):
    """found: the constants that are messages, or parts of them."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[ast.Constant] = []
        self.visit(tree)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if MAKER.search(name) and name not in BUILTIN:
            for arg in node.args:
                self._all(arg)
        for keyword in node.keywords:
            if keyword.arg in FIELDS:
                self._all(keyword.value)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in FIELDS:
                self._all(value)
        self.generic_visit(node)

    def _all(self, node: ast.AST) -> None:
        """Sentences of this expression; what calls and comparisons within it are given is their own."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            self.found.append(node)
        elif isinstance(node, ast.JoinedStr):
            self.found += [part for part in node.values if isinstance(part, ast.Constant)]
        elif isinstance(node, ast.BinOp):
            self._all(node.left)
            self._all(node.right)
        elif isinstance(node, ast.IfExp):
            self._all(node.body)
            self._all(node.orelse)
        elif isinstance(node, ast.BoolOp):
            for value in node.values:
                self._all(value)


class Reworded(ast.NodeTransformer):
    def __init__(self, found: list[ast.Constant]) -> None:
        self._found = {id(node) for node in found}

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.copy_location(ast.Constant(private(str(node.value))), node) if id(node) in self._found else node


def reworded(source: str) -> tuple[str, int]:
    """(the module with its messages replaced, how many constants those are)."""
    tree = ast.parse(source)
    found = Messages(tree).found
    return (ast.unparse(Reworded(found).visit(tree)) + "\n" if found else source), len({id(node) for node in found})


def copy(folder: Path) -> int:
    """The clone with its fleet reworded, in `folder`; how many messages were replaced."""
    names = ["fleet", "tests", "tools", "examples", "playbooks", "hostfiles", "docs"]
    for name in names:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    for file in (*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "setup.cfg", ROOT / "Makefile", ROOT / "LICENSE"):
        shutil.copy(file, folder / file.name)
    count = 0
    for path in sorted((folder / "fleet").rglob("*.py")):
        text, some = reworded(path.read_text("utf-8"))
        count += some
        path.write_text(text, "utf-8")
    (folder / "fleet/cli/__init__.py").write_text(EDGE, "utf-8")
    tests = folder / "tests/conftest.py"
    tests.write_text(tests.read_text("utf-8") + READ, "utf-8")
    _environment(folder)
    return count


def _environment(folder: Path) -> None:
    """A .venv with this one's packages, whose fleet is the copy."""
    site = folder / f".venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    site.mkdir(parents=True)
    (folder / ".venv/bin").mkdir()
    own = Path(sys.prefix)
    shutil.copy(own / "pyvenv.cfg", folder / ".venv/pyvenv.cfg")
    for program in (own / "bin").iterdir():
        target = folder / ".venv/bin" / program.name
        if program.is_symlink():
            target.symlink_to(program.resolve() if program.name.startswith("python") else program)
        elif program.read_bytes()[:2] == b"#!" and program.stat().st_size < 100_000:
            line, _, rest = program.read_bytes().partition(b"\n")
            target.write_bytes(line.replace(str(own).encode(), str(folder / ".venv").encode()) + b"\n" + rest)
            target.chmod(0o755)
    lines = [str(folder), *_sites(own)]
    (site / "a.pth").write_text("".join(f"{line}\n" for line in lines))


def _sites(own: Path) -> Iterator[str]:
    yield from (str(path) for path in own.glob("lib/python*/site-packages"))
