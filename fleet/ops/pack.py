"""`fleet pack`: fleet as one file, which any python3 from 3.6 on starts as a container's part in a run. What reads the
output of ranks, and engines but torchrun, take a python3 of 3.10, and are in it for that."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from fleet.node.base.files import replace_file
from fleet.version import __version__

MAIN = "import sys\nfrom fleet.node.container.main import main\nsys.exit(main(sys.argv[1:]))\n"
SHEBANG = b"#!/usr/bin/env python3\n"
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


def contents() -> dict[str, bytes]:
    """Path in the archive -> bytes."""
    found = {"__main__.py": MAIN.encode(), "VERSION": f"{__version__}\n".encode()}
    found |= dict(item for package in PACKAGES for item in below(files(package), package))
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
