"""Packages with engines of their own, as a user would install them beside fleet."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.wheelmaker import make_wheel

ENGINE = """
from fleet.engines.base import SPAWN, Engine, Start

class Loud(Engine):
    def start(self, job, world, node, python):
        argv = (*SPAWN, str(node.first_rank), str(node.local_world_size))
        return Start(argv, (python, "-u", job.script, *job.args), {"LOUD": world.run_id, "WORLD_SIZE": str(world.size)})
"""


def install(site: Path, name: str, text: str, **engines: str) -> Path:
    """A wheel of one module, unpacked into `site`, which is to stand on PYTHONPATH. engines: name -> attribute."""
    points = "".join(f"{engine} = {name}:{attribute}\n" for engine, attribute in engines.items())
    files = {f"{name}.py": text, f"{name}-1.5.dist-info/entry_points.txt": f"[fleet.engines]\n{points}"}
    with zipfile.ZipFile(make_wheel(site / "wheels", name, "1.5", files=files)) as wheel:
        wheel.extractall(site)
    return site
