"""Makes `fleet pack`: fleet as one file. Any python3 from 3.6 on can run the file as a container's part in a run. The
file also has modules that need Python 3.10, with their imports: the reader of ranks' output, and the engines other than
torchrun. The file is small enough for a ConfigMap of Kubernetes."""

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
WHOLE = ("node", "protocol")  # packages of fleet that run with any version of a container's python3
HEAD = ("fleet.engines.containers", READER, *(it.partition(":")[0] for it in OWN.values()))  # need Python 3.10
PACKAGES = ("fleet", "ClusterShell")  # ClusterShell folds the names of hosts
SUFFIXES = (".py", ".json")
EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same fleet makes the same bytes


def below(folder: Any, path: str) -> Iterator[tuple[str, bytes]]:
    """Yields (path in the archive, bytes) of each module of a package. folder: a folder as importlib.resources returns
    it."""
    for item in folder.iterdir():
        inner = f"{path}/{item.name}"
        if item.is_dir() and item.name not in ("__pycache__", "shipped"):
            yield from below(item, inner)
        elif item.name.endswith(SUFFIXES):
            yield inner, item.read_bytes()


class Imported(ast.NodeVisitor):
    """Collects in `names` the modules that a module may import when it runs."""

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
    """Returns modules and all their imports from PACKAGES: path in the archive -> bytes."""
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
    """Returns the contents of the archive: path -> bytes."""
    found = {"__main__.py": MAIN.encode(), "VERSION": f"{__version__}\n".encode(), **imported(*HEAD)}
    found |= dict(item for room in WHOLE for item in below(files("fleet") / room, f"fleet/{room}"))
    return {**found, "fleet/__init__.py": b""}  # empty: fleet's own imports fleet.api, which needs Python 3.10


def pack(file: Path) -> Path:
    """Writes the archive to `file`, completely or not at all. Raises OSError."""
    data = io.BytesIO(SHEBANG)
    data.seek(0, io.SEEK_END)
    with zipfile.ZipFile(data, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(contents().items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), text, zipfile.ZIP_DEFLATED)
    replace_file(os.fsencode(file), data.getvalue(), 0o777)
    return file
