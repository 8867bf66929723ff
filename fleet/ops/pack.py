"""`fleet pack`: fleet as one file, which any python3 from 3.6 on starts as a container's part in a run. What reads the
output of ranks, and engines but torchrun, take a python3 of 3.10, and are in it for that, with what they import: a
ConfigMap of Kubernetes has room for it."""

from __future__ import annotations

import ast
import io
import os
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from fleet.engines.names import OWN
from fleet.node.base.files import replace_file
from fleet.node.container.record import READER
from fleet.version import __version__

MAIN = "import sys\nfrom fleet.node.container.main import main\nsys.exit(main(sys.argv[1:]))\n"
SHEBANG = b"#!/usr/bin/env python3\n"
WHOLE = ("node", "protocol")  # of fleet: what a container needs under any python3
HEAD = ("fleet.engines.containers", READER, *(it.partition(":")[0] for it in OWN.values()))  # under 3.10
PACKAGES = ("fleet", "ClusterShell")  # the latter folds the names of hosts
SUFFIXES = (".py", ".json")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same fleet makes the same bytes


def below(folder: Any, path: str) -> Iterator[tuple[str, bytes]]:
    """Yields (path in the archive, bytes) of each module of a package. folder: as importlib has it."""
    for item in folder.iterdir():
        inner = f"{path}/{item.name}"
        if item.is_dir() and item.name not in ("__pycache__", "shipped"):
            yield from below(item, inner)
        elif item.name.endswith(SUFFIXES):
            yield inner, item.read_bytes()


class Imported(ast.NodeVisitor):
    """Collects what a module may import as it runs, of the packages: `names`."""

    def __init__(self, text: bytes) -> None:
        self.names: list[str] = []
        self.visit(ast.parse(text))

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.names += [each.name for each in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.names += [f"{node.module}", *(f"{node.module}.{each.name}" for each in node.names)]


def imported(*modules: str) -> dict[str, bytes]:
    """Returns modules, and all of the packages that these import: path in the archive -> bytes."""
    found, todo = dict[str, bytes](), [*modules]
    while todo:
        package, *rest = todo.pop().split(".")
        for path in ("/".join([package, *rest]) + ".py", "/".join([package, *rest, "__init__.py"])):
            file = files(package) / path.partition("/")[2] if package in PACKAGES and "/" in path else None
            if file is not None and path not in found and file.is_file():
                found[path] = file.read_bytes()
                todo += Imported(found[path]).names
                todo += [".".join([package, *rest[:-1]])] if rest else []
    return found


def contents() -> dict[str, bytes]:
    """Path in the archive -> bytes."""
    found = {"__main__.py": MAIN.encode(), "VERSION": f"{__version__}\n".encode(), **imported(*HEAD)}
    found |= dict(item for room in WHOLE for item in below(files("fleet") / room, f"fleet/{room}"))
    return {**found, "fleet/__init__.py": b""}  # which offers fleet.api, and takes Python 3.10


def pack(file: Path) -> Path:
    """Write it, whole or not at all. OSError."""
    data = io.BytesIO(SHEBANG)
    data.seek(0, io.SEEK_END)
    with zipfile.ZipFile(data, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(contents().items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), text, zipfile.ZIP_DEFLATED)
    replace_file(os.fsencode(file), data.getvalue(), 0o777)
    return file
