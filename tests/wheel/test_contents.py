"""What is in the packages, and that the installed fleet is made of nothing else."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from tests.wheel.packages import ROOT, Installed, run, sources

SHIPPED = ("hostfiles", "playbooks", "examples")


def wanted() -> set[str]:
    """Each file of fleet/, and of the folders that are linked into it."""
    names = sources()
    own = {name for name in names if name.startswith("fleet/") and not (ROOT / name).is_symlink()}
    return own | {f"fleet/shipped/{name}" for name in names if name.startswith(SHIPPED)}


def test_the_wheel_holds_every_file_of_fleet_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name and ".data/scripts/" not in name}
        metadata = archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA"))).decode()
    assert wanted() ^ names == set()
    assert (
        "fleet/node/run/supervise.py" in names
        and "fleet/transport/command.sh" in names
        and "fleet/ops/setup_ssh/node.sh" in names
    )
    assert "\nRequires-Python: >=3.10\n" in metadata and "\nKeywords: " in metadata
    assert "\nClassifier: Programming Language :: Python :: 3.10\n" in metadata


def test_the_sdist_holds_them_too(installed: Installed) -> None:
    with tarfile.open(installed.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert wanted() - names == set()
    assert {"README.md", "LICENSE", "pyproject.toml", "setup.cfg"} <= names


def test_nothing_of_it_comes_from_the_clone(installed: Installed, tmp_path: Path) -> None:
    python = installed.bin / "python"
    where = run(python, "-c", "import fleet; print(fleet.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(installed.bin.parent)
    paths = run(python, "-c", r"import sys; print(*sys.path, sep='\n')", cwd=tmp_path).split("\n")
    holders = [Path(path).resolve() for path in paths if path and Path(path, "fleet/__init__.py").exists()]
    assert holders[0] == Path(where).resolve().parents[1] and ROOT not in holders


def test_it_is_a_module_too(installed: Installed, tmp_path: Path) -> None:
    said = run(installed.bin / "python", "-I", "-m", "fleet", "--version", cwd=tmp_path)
    assert said == run(installed.bin / "fleet", "--version", cwd=tmp_path) and said.startswith("fleet, version ")
