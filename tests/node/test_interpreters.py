"""The interpreters of a node: real environments and a conda root in the usual places, and what hangs beside them."""

from __future__ import annotations

import sys
import venv
from pathlib import Path
from typing import Any

from fleet.codec import decode
from fleet.protocol.messages.facts import Probed
from tests.node.nodes import answer

PATH = "/usr/bin:/bin"


def environment(folder: Path, torch: str | None = None) -> Path:
    """A real one; torch: of that version, as a wheel leaves it."""
    venv.create(folder, symlinks=True)
    if torch:
        package = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/torch"
        package.mkdir()
        (package / "__init__.py").write_text("raise SystemExit('imported')")
        (package / "version.py").write_text(f"__version__ = '{torch}'\ncuda = '12.1'\n")
    return folder / "bin/python"


def conda(root: Path) -> Path:
    """What a conda root looks like, with a Python that is none of the others."""
    (root / "conda-meta").mkdir(parents=True)
    (root / "bin").mkdir()
    python = root / "bin/python"
    python.write_text(f'#!/bin/sh\nexec {environment(root / "hidden/deep/down")} "$@"\n')
    python.chmod(0o755)
    return python


def survey(home: Path, **spec: Any) -> list[dict[str, Any]]:
    said = answer("preflight.probe", {"deadline": 20, "survey": True, **spec}, home, env={"PATH": PATH})
    found: list[dict[str, Any]] = decode(Probed, said)["facts"]["interpreters"]  # type: ignore[assignment]
    return found


def test_those_with_torch_come_first_and_what_hangs_is_left_out(home: Path) -> None:
    base, train = conda(home / "miniconda3"), environment(home / "miniconda3/envs/train", "2.5.1+cu121")
    work = environment(home / "work/.venv")
    (home / ".conda").mkdir()
    told = environment(home / "elsewhere/by name")
    (home / ".conda/environments.txt").write_text(f"{told.parents[1]}\n/gone\n")
    hangs = home / ".venv/bin/python3"
    hangs.parent.mkdir(parents=True)
    hangs.write_text("#!/bin/sh\nexec sleep 1000\n")
    hangs.chmod(0o755)
    broken = home / "venv/bin/python"
    broken.parent.mkdir(parents=True)
    broken.symlink_to("/nowhere/python")
    first, *others = survey(home, workdir="~/work")
    version = ".".join(map(str, sys.version_info[:3]))
    assert first == {"path": str(train), "version": version, "torch": "2.5.1+cu121", "cuda": "12.1"}
    paths = [one["path"] for one in others]
    assert paths[:2] == ["/usr/bin/python3", str(work)] and {str(base), str(told)} <= set(paths)
    assert not {str(broken), str(hangs)} & set(paths)
    assert all(one["torch"] is None for one in others if one["path"].startswith(str(home)))


def test_they_are_told_only_where_torch_is_missing(home: Path) -> None:
    has = environment(home / "has", "2.5.1")
    for python, told in ((str(has), False), ("/nowhere/python", True), (str(environment(home / "lacks")), True)):
        facts = answer("preflight.probe", {"deadline": 20, "python": python}, home)["facts"]
        assert ("interpreters" in facts) is told, python
