"""The folders of tests of `fleet get` in this process."""

from __future__ import annotations

from pathlib import Path

import pytest


def node_beside_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a node's workdir, after it has entered here/ beside it, which is the head's folder."""
    monkeypatch.setenv("HOME", str(folder / "home"))
    for name in ("home", "node", "here"):
        (folder / name).mkdir()
    monkeypatch.chdir(folder / "here")
    return folder / "node"
