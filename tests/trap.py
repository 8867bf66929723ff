"""Packages whose setup leaves a mark, in each form that pip takes them: where the mark is, setup code ran."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from tests.wheelmaker import make_wheel

BACKEND = """
open({mark!r}, 'w').close()
def get_requires_for_build_wheel(settings=None): return []
def prepare_metadata_for_build_wheel(folder, settings=None): raise SystemExit('set up')
def build_wheel(folder, settings=None, metadata=None): raise SystemExit('set up')
"""


def project(folder: Path, mark: Path, name: str = "evil") -> Path:
    """A source tree that needs nothing to be set up, by its own backend or by its setup.py."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(BACKEND.format(mark=str(mark)))
    (folder / "setup.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    (folder / "PKG-INFO").write_text(f"Metadata-Version: 1.0\nName: {name}\nVersion: 1.0\n")
    return folder


def tarred(tree: Path, to: Path) -> Path:
    with tarfile.open(to, "w:gz") as archive:
        archive.add(tree, f"{tree.name}-1.0")
    return to


def zipped(tree: Path, to: Path) -> Path:
    with zipfile.ZipFile(to, "w") as archive:
        for path in sorted(tree.iterdir()):
            archive.write(path, f"{tree.name}-1.0/{path.name}")
    return to


def ground(folder: Path) -> Path:
    """A folder with traps and honest wheels; returns where the mark would be."""
    mark = folder / "MARK"
    tree = project(folder / "evil", mark)
    tarred(tree, folder / "evil-1.0.tar.gz")
    zipped(tree, folder / "evil.ZIP")
    zipped(tree, folder / "evil.zip")
    zipped(tree, folder / "evil-1.0-py3-none-any.whl")
    project(folder / "dotted/.whl", mark)
    project(folder / "tree-1.0-py3-none-any.whl", mark)
    project(folder / "evil @ https:/127.0.0.1:9/evil-1.0-py3-none-any.whl", mark)
    (folder / "links").mkdir()
    tarred(tree, folder / "links/evil-1.0.tar.gz")
    zipped(tree, folder / "links/evil-2.0.zip")
    make_wheel(folder, "good")
    make_wheel(folder / "a b", "spaced")
    make_wheel(folder / "links", "good", "2.0")
    make_wheel(folder / "links", "lure", requires=[f"evil @ {(folder / 'evil-1.0.tar.gz').as_uri()}"])
    make_wheel(folder / "links", "zipped", requires=[f"evil @ {(folder / 'evil.zip').as_uri()}"])
    make_wheel(folder / "links", "treed", requires=[f"evil @ {(folder / 'evil').as_uri()}"])
    make_wheel(folder / "links", "cloned", requires=["evil @ git+https://127.0.0.1:9/evil"])
    return mark
