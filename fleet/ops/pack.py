"""`fleet pack`: the node half and the runner of containers as one file, which any python3 from 3.6 on starts."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

from fleet.node.base.files import replace_file
from fleet.node.container.start import OF_RANKS
from fleet.transport.program import closure
from fleet.version import __version__

MAIN = "import sys\nfrom fleet.node.container.main import main\nsys.exit(main(sys.argv[1:]))\n"
SHEBANG = b"#!/usr/bin/env python3\n"
PROGRAMS = ("fleet.node.container.main", "fleet.node.run.supervise")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same fleet makes the same bytes


def contents() -> dict[str, bytes]:
    """Path in the archive -> bytes."""
    modules = [*PROGRAMS, *(f"fleet.node.run.rank.{module}" for module in OF_RANKS.values())]
    texts = {module: text for each in modules for module, text in closure(each).items()}
    found = {"__main__.py": MAIN.encode(), "VERSION": f"{__version__}\n".encode()}
    for module, text in texts.items():
        path = module.replace(".", "/")
        found[f"{path}.py" if text else f"{path}/__init__.py"] = text
    return found


def pack(file: Path) -> Path:
    """Write it, whole or not at all. OSError."""
    data = io.BytesIO(SHEBANG)
    data.seek(0, io.SEEK_END)
    with zipfile.ZipFile(data, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(contents().items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), text, zipfile.ZIP_DEFLATED)
    replace_file(os.fsencode(file), data.getvalue(), 0o777)
    return file
