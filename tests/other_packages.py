"""Packages with engines of their own, as a user would install them beside fleet."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.pages import BLOCKS
from tests.wheelmaker import make_wheel

# the one that docs/api.md shows
ENGINE = next(block.text for block in BLOCKS if block.page == "docs/api.md" and "class Quiet" in block.text)


def install(site: Path, name: str, text: str, *, group: str = "fleet.engines", **engines: str) -> Path:
    """A wheel of one module, unpacked into `site`, which is to stand on PYTHONPATH. engines: name -> attribute."""
    points = "".join(f"{engine} = {name}:{attribute}\n" for engine, attribute in engines.items())
    files = {f"{name}.py": text, f"{name}-1.5.dist-info/entry_points.txt": f"[{group}]\n{points}"}
    with zipfile.ZipFile(make_wheel(site / "wheels", name, "1.5", files=files)) as wheel:
        wheel.extractall(site)
    return site
